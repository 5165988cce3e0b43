// The entry of a module for --device npu whose devices are pretended ones. A program in the folder of this library
// loads it as it would load that of an NPU (device/registry.h).
#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/env.h"
#include "device/backend.h"
#include "device/npu/rungs.h"
#include "device/ops_aten.h"
#include "device/transfer.h"
#include "tests/pretend_device/pretend_communicator.h"
#include "tests/pretend_device/pretend_device.h"
#include "tests/pretend_device/pretend_memory.h"

namespace tandem::pretend_device {
namespace {

int num_devices(std::string& /*why_none*/) { return kNumDevices; }

// Within a machine that is enough: every process counts the same devices.
std::string device_id(int index) { return fmt::format("pretended-{}", index); }

// Returns the fault that a test asks for by the environment; "" for none.
std::string planted_fault() { return base::value_of("TANDEM_PRETEND_FAULT"); }

device::Stack stack(int /*index*/) { return {{"NPU", "a pretended device"}, {"fault", planted_fault()}}; }

// Returns the calls of an NPU, of which a test that measures no memory may have attention compute fewer tiles.
device::AtenCallShape call_shape(const std::string& rung) {
  device::AtenCallShape call = device::npu::call_shape(rung);
  const std::string tiles = base::value_of("TANDEM_PRETEND_ATTENTION_TILES");
  if (!tiles.empty()) call.attention_tiles = std::stoi(tiles);
  return call;
}

// One thread computes, since the bits of LibTorch's products on the CPU depend on how many there are.
std::unique_ptr<device::Ops> make_ops(int index, int /*num_threads*/, const std::string& rung) {
  const std::string name = fmt::format("npu/aten on a pretended device{}", rung == "best" ? "" : ", " + rung);
  plant(planted_fault());
  return device::make_aten_ops(device(index), name, 1, call_shape(rung));
}

device::DeviceBytes device_bytes(int /*index*/) { return {.free = kCapacityBytes, .total = kCapacityBytes}; }

// A device of an odd number maps an extent at one address only, as some do.
device::MemoryDriver open_memory(int index) {
  device::MemoryDriver driver;
  driver.vmm = std::make_unique<DeviceVmm>(kCapacityBytes, /*can_alias=*/index % 2 == 0);
  driver.make_host = [] { return std::make_unique<PinnedMemory>(); };
  driver.set_tensor_source = set_tensor_source;
  driver.used_bytes = [](int64_t vmm_bytes) { return vmm_bytes + held_bytes(); };
  driver.synchronize = [] {};
  driver.release_unused = release_unused;
  return driver;
}

std::vector<device::Checksum> checksums(const std::vector<at::Tensor>& tensors) {
  std::vector<device::Checksum> result;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor host = device::to_host(tensor);
    result.push_back(device::checksum_of({static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()}));
  }
  return result;
}

// No process sees the memory of another one.
std::string show_memory(const at::Tensor& /*tensor*/) { return ""; }
at::Tensor map_memory(int /*index*/, const std::string& /*word*/) { return {}; }
std::vector<device::Checksum> copy_mapped(const at::Tensor& mapped, const at::Tensor& to,
                                          const std::vector<at::Tensor>& parts) {
  to.view(at::kByte).copy_(mapped);
  return checksums(parts);
}

}  // namespace
}  // namespace tandem::pretend_device

extern "C" __attribute__((visibility("default"))) const tandem::device::Backend* tandem_backend() {
  namespace pretended = tandem::pretend_device;
  static constexpr tandem::device::Backend kBackend = {
      .contract = tandem::device::kBackendContract,
      .num_devices = pretended::num_devices,
      .device_id = pretended::device_id,
      .stack = pretended::stack,
      .make_ops = pretended::make_ops,
      .device_bytes = pretended::device_bytes,
      .open_memory = pretended::open_memory,
      .make_communicator = [](int /*index*/,
                              const tandem::device::DeviceRanks& ranks) { return pretended::make_communicator(ranks); },
      .show_memory = pretended::show_memory,
      .map_memory = pretended::map_memory,
      .checksums = pretended::checksums,
      .copy_mapped = pretended::copy_mapped};
  return &kBackend;
}
