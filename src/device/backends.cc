#include "device/backends.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "device/cpu/footprint.h"
#include "device/cuda/footprint.h"
#include "device/npu/footprint.h"
#include "device/npu/rungs.h"

namespace tandem::device {
namespace {

constexpr std::array kBackends = {
    BackendRow{.name = "cpu",
               .footprint = &cpu::kFootprint,
               .communicator = "gloo",
               .moves_tensors = "sockets between the processes, for which gloo is another word",
               .resource = "CPU"},
    BackendRow{.name = "cuda",
               .footprint = &cuda::kFootprint,
               .communicator = "nccl",
               .moves_tensors = "nccl, and within a machine the GPUs themselves",
               .resource = "GPU",
               .device = "NVIDIA GPU",
               .remedy = "build it with `make cuda`, or give --device cpu",
               .visible_devices = "CUDA_VISIBLE_DEVICES"},
    BackendRow{.name = "npu",
               .footprint = &npu::kFootprint,
               .communicator = "hccl",
               .moves_tensors = "hccl",
               .resource = "NPU",
               .device = "Ascend NPU",
               .remedy = "build it with `make npu`, or give --device cpu",
               .rungs = npu::kRungs,
               .visible_devices = "ASCEND_RT_VISIBLE_DEVICES",
               .why_unchecked = "no run on several NPUs has been reported yet, so nothing shows that HCCL moves their "
                                "tensors right"},
};

// Returns "a, b or c".
std::string listed(const std::vector<std::string>& texts, const char* before_last) {
  std::string list = texts.front();
  for (size_t i = 1; i < texts.size(); ++i) list += (i + 1 < texts.size() ? ", " : before_last) + texts[i];
  return list;
}

}  // namespace

std::span<const BackendRow> backends() { return kBackends; }

const BackendRow* find_backend(std::string_view name) {
  const auto* const found = std::ranges::find(kBackends, name, &BackendRow::name);
  return found == kBackends.end() ? nullptr : found;
}

std::string device_choices() {
  std::vector<std::string> texts;
  for (const BackendRow& row : kBackends) {
    texts.emplace_back(row.name);
    if (row.is_module()) texts.push_back(fmt::format("{}:N", row.name));
  }
  return listed(texts, " or ");
}

std::string device_help() {
  std::vector<std::string> texts;
  for (const BackendRow& row : kBackends) {
    texts.emplace_back(row.name);
    if (row.is_module()) texts.push_back(fmt::format("{}:N for {} N", row.name, row.resource));
  }
  return listed(texts, ", or ");
}

std::string module_names() {
  std::vector<std::string> names;
  for (const BackendRow& row : kBackends) {
    if (row.is_module()) names.emplace_back(row.name);
  }
  return listed(names, ", ");
}

DeviceSpec parse_device(const std::string& text) {
  const size_t colon = text.find(':');
  DeviceSpec spec{.backend = text.substr(0, colon)};
  const BackendRow* const row = find_backend(spec.backend);
  bool is_known = row != nullptr;
  if (colon != std::string::npos) {
    const std::string index = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(index.data(), index.data() + index.size(), spec.index);
    const bool is_number = error == std::errc() && end == index.data() + index.size() && spec.index >= 0;
    is_known = is_known && row->is_module() && is_number;
  }
  TANDEM_USER_CHECK(is_known, fmt::format("--device {}: must be {}", text, device_choices()));
  return spec;
}

const BackendRow& backend_of(const DeviceSpec& device) {
  const BackendRow* const row = find_backend(device.backend);
  TANDEM_CHECK(row != nullptr, "no backend", device.backend);
  return *row;
}

const Footprint& footprint_of(const DeviceSpec& device) { return *backend_of(device).footprint; }

const Footprint& footprint_of(const std::string& text) { return footprint_of(parse_device(text)); }

}  // namespace tandem::device
