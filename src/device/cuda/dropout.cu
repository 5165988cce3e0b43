// dropout.h has the contract. A thread draws the bits of four neighbouring columns of a row at a time.
#include "device/cuda/dropout.h"

#include <algorithm>

#include "device/cuda/vectors.cuh"

namespace tandem::device::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 65535;

// The grid's first dimension has the columns, its second one the rows.
template <typename Element>
__global__ __launch_bounds__(kThreads) void drop_kernel(const Element* x, const int64_t* row_keys, Element* y,
                                                        int64_t T, int64_t width, uint64_t stream, uint32_t threshold,
                                                        float scale) {
  const int64_t block = int64_t{blockIdx.x} * kThreads + threadIdx.x, begin = block * kDropoutColumns;
  if (begin >= width) return;
  for (int64_t t = blockIdx.y; t < T; t += gridDim.y) {
    uint32_t bits[kDropoutColumns];
    dropout_bits(static_cast<uint64_t>(row_keys[t]), stream, block, bits);
#pragma unroll
    for (int64_t i = 0; i < kDropoutColumns; ++i) {
      if (begin + i >= width) break;
      const int64_t at = t * width + begin + i;
      write(y + at, bits[i] >= threshold ? widen(x[at]) * scale : 0.0F);
    }
  }
}

}  // namespace

template <typename Element>
cudaError_t drop(const Dropout& dropout, const Element* x, const int64_t* row_keys, Element* y, int64_t T,
                 int64_t width, cudaStream_t stream) {
  if (T == 0 || width == 0) return cudaSuccess;
  const int64_t columns = kThreads * kDropoutColumns;
  const dim3 grid(static_cast<uint32_t>((width + columns - 1) / columns),
                  static_cast<uint32_t>(std::min(T, kMostBlocks)));
  drop_kernel<<<grid, kThreads, 0, stream>>>(x, row_keys, y, T, width, dropout.stream, dropout.threshold(),
                                             dropout.scale());
  return cudaGetLastError();
}

template cudaError_t drop(const Dropout&, const float*, const int64_t*, float*, int64_t, int64_t, cudaStream_t);
template cudaError_t drop(const Dropout&, const __nv_bfloat16*, const int64_t*, __nv_bfloat16*, int64_t, int64_t,
                          cudaStream_t);

}  // namespace tandem::device::cuda
