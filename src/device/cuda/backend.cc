// The entry of the CUDA module: it finds the GPUs, sets LibTorch up so that a forward is exact, and makes the
// operations.
#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "device/backend.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/footprint.h"
#include "device/cuda/memory/cuda_allocator_hook.h"
#include "device/cuda/memory/cuda_host_memory.h"
#include "device/cuda/memory/cuda_vmm.h"
#include "device/cuda/products/linear_plans.h"
#include "device/cuda/ranks/nccl_communicator.h"
#include "device/cuda/ranks/peer_communicator.h"
#include "device/cuda/ranks/shown_memory.h"
#include "device/ops_aten.h"

namespace tandem::device {
namespace {

void check_runtime(cudaError_t error, int index) {
  TANDEM_ENV_CHECK(error == cudaSuccess,
                   fmt::format("--device cuda:{}: {}; give --device cpu", index, cudaGetErrorString(error)));
}

// This asks the runtime itself, since LibTorch would write its own warning.
int num_devices(std::string& why_none) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    why_none = cudaGetErrorString(error);
    cudaGetLastError();
    return 0;
  }
  if (count == 0) why_none = "no device";
  return count;
}

// Returns the device's UUID, written as `nvidia-smi -L` writes it.
std::string device_id(int index) {
  cudaDeviceProp properties;
  check_runtime(cudaGetDeviceProperties(&properties, index), index);
  std::string id = "GPU";
  for (size_t i = 0; i < sizeof properties.uuid.bytes; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) id += '-';
    id += fmt::format("{:02x}", static_cast<unsigned char>(properties.uuid.bytes[i]));
  }
  return id;
}

Stack stack(int index) {
  cudaDeviceProp properties;
  check_runtime(cudaGetDeviceProperties(&properties, index), index);
  int driver = 0, runtime = 0;
  check_runtime(cudaDriverGetVersion(&driver), index);
  check_runtime(cudaRuntimeGetVersion(&runtime), index);
  const auto version = [](int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); };
  return {{"GPU", fmt::format("{}, compute capability {}.{}", properties.name, properties.major, properties.minor)},
          {"CUDA of the driver", version(driver)},
          {"CUDA runtime", version(runtime)},
          {"products", cuda::LinearPlans::library()}};
}

// Nothing may round more than the contract says: no TF32, no sums in bfloat16. cuBLAS may cut a sum as it likes,
// split-K too: a forward only ever calls it at one shape (ops_aten.h).
void set_up_exact_products() {
  at::Context& context = at::globalContext();
  context.lazyInitDevice(at::kCUDA);
  context.setAllowTF32CuBLAS(false);
  context.setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false, /*allow_splitk=*/true);
}

// Returns the bytes of the current device, with all processes' memory.
DeviceBytes bytes_now(int index) {
  size_t free = 0, total = 0;
  check_runtime(cudaMemGetInfo(&free, &total), index);
  return {.free = static_cast<int64_t>(free), .total = static_cast<int64_t>(total)};
}

// The bytes of each device once our context existed, and before anything else of ours did.
std::map<int, DeviceBytes> bytes_at_start;

std::unique_ptr<Ops> make_ops(int index, int num_threads, const std::string& /*rung*/) {
  cudaDeviceProp properties;
  check_runtime(cudaGetDeviceProperties(&properties, index), index);
  install_cuda_tensor_source();
  set_up_exact_products();
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
  check_runtime(cudaFree(nullptr), index);  // creates the context
  bytes_at_start.try_emplace(index, bytes_now(index));
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
  // The name goes into checkpoints: another type of GPU, or another library, may give other bits.
  std::unique_ptr<Ops> aten = make_aten_ops(device, fmt::format("cuda/aten on {}", properties.name), num_threads,
                                            {.multiplies_bfloat16 = true, .index_add_is_unordered = true});
  if (properties.major < 8) {
    base::log_warning(
        "{} has compute capability {}.{}: Tandem's kernels begin at 8.0, so LibTorch's operations compute, which are "
        "several times slower",
        properties.name, properties.major, properties.minor);
    return aten;
  }
  return make_cuda_ops(std::move(aten), fmt::format("cuda on {}, {}", properties.name, cuda::LinearPlans::library()));
}

DeviceBytes device_bytes(int index) {
  DeviceBytes bytes = bytes_at_start.at(index);
  bytes.free += cuda::kContextBytes;
  return bytes;
}

// Memory that other processes have had since the start is not ours.
int64_t used_bytes(int64_t /*vmm_bytes*/) {
  int index = 0;
  check_runtime(cudaGetDevice(&index), index);
  return bytes_at_start.at(index).free - bytes_now(index).free + cuda::kContextBytes;
}

MemoryDriver open_memory(int index) {
  make_cublas_workspaces();
  MemoryDriver driver;
  driver.vmm = std::make_unique<CudaVmm>(index);
  driver.make_host = [index] { return std::make_unique<CudaHostMemory>(index); };
  driver.set_tensor_source = set_cuda_tensor_source;
  driver.used_bytes = used_bytes;
  driver.synchronize = [] { c10::cuda::device_synchronize(); };
  driver.release_unused = release_cuda_cache;
  if (expandable_segments_were_on()) {
    driver.note =
        "expandable_segments is off in this run, whatever PYTORCH_ALLOC_CONF says: its plan counts whole segments";
  }
  return driver;
}

std::unique_ptr<Communicator> make_communicator(int index, const DeviceRanks& ranks) {
  std::unique_ptr<Communicator> peers;
  if (ranks.shares_memory) peers = make_peer_communicator(index, ranks);
  return peers ? std::move(peers) : make_nccl_communicator(index, ranks);
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
                                                       .show_memory = tandem::device::show_cuda_memory,
                                                       .map_memory = tandem::device::map_cuda_memory,
                                                       .checksums = tandem::device::cuda_checksums,
                                                       .copy_mapped = tandem::device::copy_mapped_cuda_memory};
  return &kBackend;
}
