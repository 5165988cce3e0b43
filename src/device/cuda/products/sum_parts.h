// Sums over tensor ranks on a GPU: device::Ops::sum_parts(). No torch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tandem::device::cuda {

constexpr int kMostParts = 8;

// The kernel gets it by value. Each data[i] is 16-byte aligned, float32 or bfloat16.
struct Parts {
  int count;
  bool is_float32;
  const void* data[kMostParts];
};

// Computes sum [n] = ((part 0 + part 1) + ...) in float32, rounded to sum's dtype, float32 or bfloat16; then residual +
// that, rounded again, unless `residual` (of sum's dtype) is null. n is a multiple of 8; all are 16-byte aligned.
cudaError_t sum_parts(const Parts& parts, const void* residual, void* sum, bool is_float32, int64_t n,
                      cudaStream_t stream);

}  // namespace tandem::device::cuda
