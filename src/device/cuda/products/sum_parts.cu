// sum_parts.h has the contract. Each thread takes eight elements.
#include "device/cuda/eights.cuh"
#include "device/cuda/products/sum_parts.h"

namespace tandem::device::cuda {
namespace {

constexpr int kThreads = 256;

template <typename Part, typename Sum>
__global__ void __launch_bounds__(kThreads) sum_kernel(Parts parts, const Sum* residual, Sum* sum, int64_t eights) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const auto place_of = [&](int part) { return static_cast<const Part*>(parts.data[part]); };
  add_up<1, kMostParts>(place_of, parts.count, residual, sum, i, 1, eights);
}

template <typename Part, typename Sum>
cudaError_t launch(const Parts& parts, const void* residual, void* sum, int64_t n, cudaStream_t stream) {
  const int64_t eights = n / kEight;
  sum_kernel<Part, Sum><<<static_cast<unsigned>((eights + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      parts, static_cast<const Sum*>(residual), static_cast<Sum*>(sum), eights);
  return cudaGetLastError();
}

}  // namespace

cudaError_t sum_parts(const Parts& parts, const void* residual, void* sum, bool is_float32, int64_t n,
                      cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  if (parts.is_float32) {
    return is_float32 ? launch<float, float>(parts, residual, sum, n, stream)
                      : launch<float, __nv_bfloat16>(parts, residual, sum, n, stream);
  }
  return is_float32 ? launch<__nv_bfloat16, float>(parts, residual, sum, n, stream)
                    : launch<__nv_bfloat16, __nv_bfloat16>(parts, residual, sum, n, stream);
}

}  // namespace tandem::device::cuda
