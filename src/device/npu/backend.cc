// The entry of the NPU module: it finds the NPUs, opens the half that needs torch_npu, and gives access to memory. It
// links neither torch_npu nor CANN nor Python, because it must answer where none of them is installed.
#include "device/backend.h"

#include <ATen/core/Tensor.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <map>

#include "base/check.h"
#include "base/env.h"
#include "device/backends.h"
#include "device/npu/acl_calls.h"
#include "device/npu/hccl_calls.h"
#include "device/npu/hccl_communicator.h"
#include "device/npu/npu_checksum.h"
#include "device/npu/npu_host_memory.h"
#include "device/npu/npu_identity.h"
#include "device/npu/npu_vmm.h"
#include "device/npu/torch_half.h"

namespace tandem::device {
namespace {

const npu::AclCalls& acl() {
  static const npu::AclCalls calls = npu::load_acl_calls();  // asked for again where it failed
  return calls;
}

const TorchHalf& open_torch_half() {
  Dl_info here = {};
  dladdr(reinterpret_cast<const void*>(&open_torch_half), &here);
  const std::string path = std::filesystem::path(here.dli_fname).replace_filename("libtandem_npu_torch.so").string();
  // It stays for the life of the process, as torch_npu does.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* const why = library == nullptr ? dlerror() : "";
  TANDEM_ENV_CHECK(library != nullptr,
                   fmt::format("--device npu: {}; build it with `make npu PYTHON=python3`, where that Python has "
                               "torch_npu, or give --device cpu",
                               why));
  const auto entry = reinterpret_cast<TorchHalfEntry>(dlsym(library, kTorchHalfEntry));
  TANDEM_CHECK(entry != nullptr, path, "has no", kTorchHalfEntry);
  return *entry();
}

const TorchHalf& torch_half() {
  static const TorchHalf& half = open_torch_half();
  return half;
}

int num_devices(std::string& why_none) {
  try {
    uint32_t count = 0;
    npu::check_acl(acl(), acl().aclrtGetDeviceCount(&count), "aclrtGetDeviceCount");
    if (count == 0) why_none = "no device; see `npu-smi info`";
    return static_cast<int>(count);
  } catch (const EnvironmentError& error) {
    why_none = error.what();
    return 0;
  }
}

// NPUs that cannot run this, by how CANN's names of them begin.
struct Refused {
  const char* beginning;
  const char* why;
};
constexpr std::array kRefused = {
    Refused{"Ascend310", "which is made for inference"},
    Refused{"Ascend910A", "which has no bfloat16"},
    Refused{"Ascend910P", "which has no bfloat16"},  // 910ProA, 910PremiumA
    Refused{"Ascend950", "on which torch_npu takes no allocator of others"},
};

std::string device_id(int index) { return npu_identity(acl(), index, this_npu_host()); }

DeviceBytes bytes_now(int index) {
  const npu::AclDevice device(acl(), index);
  const npu::CurrentContext current(device);
  size_t free = 0, total = 0;
  npu::check_acl(acl(), acl().aclrtGetMemInfo(npu::kAclHbm, &free, &total), "aclrtGetMemInfo");
  return {.free = static_cast<int64_t>(free), .total = static_cast<int64_t>(total)};
}

// The bytes of each device once our context existed, and before anything else of ours did.
std::map<int, DeviceBytes> bytes_at_start;
// The device that this process computes on.
int current_index = 0;

int64_t context_bytes() {
  const BackendRow* const row = find_backend("npu");
  return row == nullptr ? 0 : row->footprint->context_bytes;
}

// "Ascend910B1, CANN 9.1.0".
std::string soc_and_cann(int index) {
  const npu::AclDevice device(acl(), index);
  const npu::CurrentContext current(device);
  const char* const name = acl().aclrtGetSocName();
  const std::string soc = name == nullptr ? "an NPU without a name" : name;
  for (const Refused& refused : kRefused)
    TANDEM_ENV_CHECK(
        !soc.starts_with(refused.beginning),
        fmt::format("--device npu:{}: it is an {}, {}; use an Ascend 910B or a newer 910, or give --device "
                    "cpu",
                    index, soc, refused.why));
  const std::string version = npu::cann_version(acl());
  return fmt::format("{}, CANN {}", soc, version.empty() ? "of unknown version" : version);
}

Stack stack(int index) { return {{"NPU", soc_and_cann(index)}, {"torch_npu", torch_half().torch_npu}}; }

std::unique_ptr<Ops> make_ops(int index, int num_threads, const std::string& rung) {
  const std::string stack = soc_and_cann(index);
  std::unique_ptr<Ops> ops = torch_half().make_ops(index, num_threads, stack, rung);
  bytes_at_start.try_emplace(index, bytes_now(index));
  current_index = index;
  return ops;
}

DeviceBytes device_bytes(int index) {
  DeviceBytes bytes = bytes_at_start.at(index);
  bytes.free += context_bytes();
  return bytes;
}

// Memory that other processes have had since the start is not ours.
int64_t used_bytes(int64_t /*vmm_bytes*/) {
  return bytes_at_start.at(current_index).free - bytes_now(current_index).free + context_bytes();
}

std::string note() {
  for (const char* variable : {"PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    if (base::value_of(variable).find("expandable_segments:True") == std::string::npos) continue;
    return fmt::format("{} asks for expandable_segments, which has no effect: the run's own allocator serves torch_npu",
                       variable);
  }
  return "";
}

MemoryDriver open_memory(int index) {
  MemoryDriver driver;
  driver.vmm = std::make_unique<NpuVmm>(acl(), index);
  driver.make_host = [index] { return std::make_unique<NpuHostMemory>(acl(), index); };
  driver.set_tensor_source = torch_half().set_tensor_source;
  driver.used_bytes = used_bytes;
  driver.synchronize = torch_half().synchronize;
  driver.release_unused = torch_half().release_unused;
  driver.note = note();
  return driver;
}

std::unique_ptr<Communicator> make_communicator(int index, const DeviceRanks& ranks) {
  static const npu::HcclCalls hccl = npu::load_hccl_calls();  // asked for again where it failed
  return make_hccl_communicator(acl(), hccl, index, ranks, torch_half().synchronize);
}

// Other processes get weights through the host: nothing is shown, and nothing can be mapped.
std::string show_memory(const at::Tensor& /*tensor*/) { return ""; }
at::Tensor map_memory(int /*index*/, const std::string& /*word*/) { return {}; }
std::vector<Checksum> copy_mapped(const at::Tensor& /*mapped*/, const at::Tensor& /*to*/,
                                  const std::vector<at::Tensor>& /*parts*/) {
  TANDEM_CHECK(false, "nothing was mapped");
  return {};
}

std::vector<Checksum> checksums(const std::vector<at::Tensor>& tensors) {
  torch_half().synchronize();
  NpuHostMemory memory(acl(), current_index);
  HostChecksums host(memory);
  std::vector<Checksum> result;
  for (const at::Tensor& tensor : tensors)
    result.push_back(
        host.of(static_cast<const std::byte*>(tensor.const_data_ptr()), static_cast<int64_t>(tensor.nbytes())));
  return result;
}

}  // namespace
}  // namespace tandem::device

extern "C" __attribute__((visibility("default"))) const tandem::device::Backend* tandem_backend() {
  static constexpr tandem::device::Backend kBackend = {.contract = tandem::device::kBackendContract,
                                                       .num_devices = tandem::device::num_devices,
                                                       .device_id = tandem::device::device_id,
                                                       .stack = tandem::device::stack,
                                                       .make_ops = tandem::device::make_ops,
                                                       .device_bytes = tandem::device::device_bytes,
                                                       .open_memory = tandem::device::open_memory,
                                                       .make_communicator = tandem::device::make_communicator,
                                                       .show_memory = tandem::device::show_memory,
                                                       .map_memory = tandem::device::map_memory,
                                                       .checksums = tandem::device::checksums,
                                                       .copy_mapped = tandem::device::copy_mapped};
  return &kBackend;
}
