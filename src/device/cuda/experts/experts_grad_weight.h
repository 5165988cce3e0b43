// The gradient of experts' weights in bfloat16 (device/experts.h) as one kernel, for GPUs of compute capability 9.0. It
// finds the experts' places on the device, so that nobody waits for their numbers, and reads the rows of tokens where
// they lie.
//
// Every output has the bits of ordered_product() over the expert's places in their order: one float32 accumulator, to
// which the places are added sixteen at a time; then the old value, if there is one. No torch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/cuda/experts/route.h"

namespace tandem::device::cuda {

// All pointers are of the device; rows are contiguous, begin at multiples of 16 bytes, and have a multiple of 8
// numbers.
struct ExpertsGradWeight {
  const __nv_bfloat16* dy = nullptr;  // [T, N] where it has the rows of tokens, else [P, N]
  const __nv_bfloat16* x = nullptr;   // [T, K] or [P, K]
  bool dy_is_of_tokens = false, x_is_of_tokens = false;
  const int32_t* offsets = nullptr;         // [X + 1]
  const int32_t* sources = nullptr;         // [P]
  int64_t num_experts = 0, num_chosen = 0;  // at most kMostExperts
  int64_t N = 0, K = 0;
};

// Returns whether the current device has the kernel.
bool has_experts_grad_weight();

// Computes dw [X N, K] = or, if it `adds`, += the sums over places; `scratch` is four bytes. Returns the error of the
// launch.
cudaError_t experts_grad_weight(const ExpertsGradWeight& gradient, float* dw, bool adds, int32_t* scratch,
                                cudaStream_t stream);

}  // namespace tandem::device::cuda
