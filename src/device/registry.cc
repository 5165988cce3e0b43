#include "device/registry.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <thread>

#include "base/check.h"
#include "base/machine_memory.h"
#include "base/program_folder.h"
#include "device/backend.h"
#include "device/cpu/cpu_allocator_hook.h"
#include "device/cpu/cpu_host_memory.h"
#include "device/cpu/cpu_vmm.h"
#include "device/thread_pool.h"
#include "device/transfer.h"

namespace tandem::device {
namespace {

FakeBackend stand_in;  // of a test

const Backend& load(const BackendRow& row) {
  const std::string path = module_path(base::program_folder(), row.name);
  TANDEM_ENV_CHECK(!path.empty(), fmt::format("--device {}: this build has no module libtandem_{}.so; {}", row.name,
                                              row.name, row.remedy));
  // It stays for the life of the process: tensors and kernels point into it.
  void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* const why = module == nullptr ? dlerror() : "";
  TANDEM_ENV_CHECK(module != nullptr, fmt::format("--device {}: {}; {}", row.name, why, row.remedy));
  const auto entry = reinterpret_cast<BackendEntry>(dlsym(module, kBackendEntry));
  const Backend* const backend = entry == nullptr ? nullptr : entry();
  TANDEM_ENV_CHECK(backend != nullptr && backend->contract == kBackendContract,
                   fmt::format("--device {}: {} is of another build than the program; {}", row.name, path, row.remedy));
  return *backend;
}

// The CPU's part of each function is here; the others' are in their modules.
bool is_host(const DeviceSpec& device) { return !backend_of(device).is_module(); }

// Loads the module of a device that is there.
const Backend& module_with_device(const BackendRow& row, const DeviceSpec& device) {
  const Backend& backend = load(row);
  std::string why_none;
  const int num_devices = backend.num_devices(why_none);
  TANDEM_ENV_CHECK(num_devices > 0, fmt::format("--device {}: this process sees no {} ({}); give --device cpu",
                                                row.name, row.device, why_none));
  TANDEM_USER_CHECK(device.index < num_devices,
                    fmt::format("--device {}:{}: this process sees {} {}{}, numbered from 0; give a smaller number",
                                row.name, device.index, num_devices, row.device, num_devices == 1 ? "" : "s"));
  return backend;
}

// Returns the way to compute of a backend that has several.
std::string rung_of(const BackendRow& row, const DeviceSpec& device, const std::string& asked_for) {
  if (row.rungs.empty()) return "";
  if (std::ranges::find(row.rungs, asked_for) != row.rungs.end()) return asked_for;
  const std::optional<KeptCheck> kept = read_kept_check(stack(device));
  const bool is_known = kept && std::ranges::find(row.rungs, kept->rung) != row.rungs.end();
  return is_known ? kept->rung : row.rungs.front();
}

}  // namespace

std::string module_path(const std::string& program_folder, const std::string& backend) {
  const std::string name = fmt::format("libtandem_{}.so", backend);
  // A module is beside the program, where the build leaves it, or where its wheel is installed.
  for (const std::string& path : {fmt::format("{}/{}", program_folder, name),
                                  fmt::format("{}/../../src/device/{}/{}", program_folder, backend, name),
                                  fmt::format("{}/../../tandem_{}/{}", program_folder, backend, name)}) {
    std::error_code error;
    if (std::filesystem::is_regular_file(path, error)) return std::filesystem::path(path).lexically_normal().string();
  }
  return "";
}

int num_devices(const std::string& backend) {
  const BackendRow& row = backend_of({.backend = backend});
  if (stand_in.make_ops || !row.is_module()) return 1;
  std::string why_none;
  return module_path(base::program_folder(), backend).empty() ? 0 : load(row).num_devices(why_none);
}

std::string device_id(const DeviceSpec& device) {
  const BackendRow& row = backend_of(device);
  return stand_in.make_ops || !row.is_module() ? "" : load(row).device_id(device.index);
}

Stack stack(const DeviceSpec& device) {
  const BackendRow& row = backend_of(device);
  Stack result = {{"LibTorch", TORCH_VERSION}};
  if (!row.is_module()) {
    result.emplace_back("instruction sets", available_cpu_isas());
  } else if (!stand_in.make_ops) {
    for (auto& entry : module_with_device(row, device).stack(device.index)) result.push_back(std::move(entry));
  }
  return result;
}

std::span<const char* const> rungs_of(const DeviceSpec& device) {
  if (stand_in.make_ops) return {};
  return backend_of(device).rungs;
}

std::unique_ptr<Ops> make_ops(const DeviceSpec& device, const HostOptions& host) {
  if (stand_in.make_ops) return stand_in.make_ops();
  const BackendRow& row = backend_of(device);
  if (!row.is_module()) return make_cpu_ops(host.isa, host.num_threads);
  const Backend& backend = module_with_device(row, device);
  // LibTorch's loops on the host run on OpenMP's threads. OpenMP ends the process where the machine refuses one, so as
  // many are started here first, and ended again: a refusal is then an error with a remedy.
  const ThreadPool probe(host.num_threads > 0 ? host.num_threads : usable_cores());
  return backend.make_ops(device.index, host.num_threads, rung_of(row, device, host.isa));
}

ScopedFakeBackend::ScopedFakeBackend(FakeBackend replacement) { stand_in = std::move(replacement); }
ScopedFakeBackend::~ScopedFakeBackend() { stand_in = {}; }

std::optional<DeviceBytes> device_bytes(const DeviceSpec& device) {
  if (stand_in.bytes) return stand_in.bytes;
  if (is_host(device)) return std::nullopt;
  return load(backend_of(device)).device_bytes(device.index);
}

std::unique_ptr<Communicator> make_communicator(const DeviceSpec& device, const DeviceRanks& ranks) {
  TANDEM_CHECK(!is_host(device), "the mesh makes the CPU's communicators");
  if (ranks.hosts.size() == 1) return solo_communicator();
  return load(backend_of(device)).make_communicator(device.index, ranks);
}

std::string show_memory(const DeviceSpec& device, const at::Tensor& tensor) {
  if (stand_in.show_memory) return stand_in.show_memory(tensor);
  return is_host(device) ? "" : load(backend_of(device)).show_memory(tensor);
}

at::Tensor map_memory(const DeviceSpec& device, const std::string& word) {
  if (stand_in.map_memory) return stand_in.map_memory(word);
  return is_host(device) ? at::Tensor() : load(backend_of(device)).map_memory(device.index, word);
}

std::vector<Checksum> checksums(const DeviceSpec& device, const std::vector<at::Tensor>& tensors) {
  if (!is_host(device)) return load(backend_of(device)).checksums(tensors);
  std::vector<Checksum> result;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor host = to_host(tensor);
    result.push_back(checksum_of({static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()}));
  }
  return result;
}

std::vector<Checksum> copy_mapped(const DeviceSpec& device, const at::Tensor& mapped, const at::Tensor& to,
                                  const std::vector<at::Tensor>& parts) {
  if (!is_host(device)) return load(backend_of(device)).copy_mapped(mapped, to, parts);
  to.view(at::kByte).copy_(mapped);
  return checksums(device, parts);
}

MemoryDriver open_memory(const DeviceSpec& device) {
  if (stand_in.open_memory) return stand_in.open_memory();
  if (!is_host(device)) return load(backend_of(device)).open_memory(device.index);
  MemoryDriver driver;
  driver.vmm = std::make_unique<CpuVmm>();
  driver.make_host = [] { return std::make_unique<CpuHostMemory>(); };
  driver.set_tensor_source = set_cpu_tensor_source;
  driver.used_bytes = [](int64_t vmm_bytes) {
    static thread_local base::ProcessMemory process;
    return process.unshared_bytes() + vmm_bytes;
  };
  driver.synchronize = [] {};
  return driver;
}

}  // namespace tandem::device
