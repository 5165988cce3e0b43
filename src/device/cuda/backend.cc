// The CUDA module's entry: which GPUs there are, LibTorch set up so that a forward is exact, and the operations.
// Every operation is still ops_aten's; a kernel of our own would replace one by overriding it.
#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "base/check.h"
#include "device/backend.h"
#include "device/ops_aten.h"

namespace tandem::device {
namespace {

// Asked of the runtime itself: LibTorch writes its own warning.
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

// Nothing may round more than the contract says: no TF32, no sums in bfloat16. How cuBLAS cuts a sum is left to it,
// split-K too: a forward only ever calls it at one shape (ops_aten.h).
void set_up_exact_products() {
  at::Context& context = at::globalContext();
  context.lazyInitDevice(at::kCUDA);
  context.setAllowTF32CuBLAS(false);
  context.setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false, /*allow_splitk=*/true);
}

std::unique_ptr<Ops> make_ops(int index, int num_threads) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, index);
  TANDEM_ENV_CHECK(error == cudaSuccess,
                   fmt::format("--device cuda:{}: {}; give --device cpu", index, cudaGetErrorString(error)));
  set_up_exact_products();
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
  // The name goes into checkpoints: another type of GPU may give other bits.
  return make_aten_ops(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index)),
                       fmt::format("cuda/aten on {}", properties.name), num_threads);
}

// Not given away yet: LibTorch's caching allocator has the device.
MemoryDriver open_memory(int /*index*/) { return {}; }

}  // namespace
}  // namespace tandem::device

extern "C" __attribute__((visibility("default"))) const tandem::device::Backend* tandem_backend() {
  static constexpr tandem::device::Backend kBackend = {.contract = tandem::device::kBackendContract,
                                                       .num_devices = tandem::device::num_devices,
                                                       .make_ops = tandem::device::make_ops,
                                                       .open_memory = tandem::device::open_memory};
  return &kBackend;
}
