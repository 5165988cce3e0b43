// The product of places with the weights of their experts (device/experts.h) where these are codes
// (device/quantisation.h): a block turns the codes that it needs into bfloat16 itself, so that no weights are written.
// Every output has the bits of ordered_product() with the weights that the codes stand for. For every GPU of compute
// capability 8.0 or later. No torch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/cuda/products/quantised.h"

namespace tandem::device::cuda {

// All pointers are of the device; rows are contiguous and begin at multiples of 16 bytes.
struct ExpertsOfCodes {
  const __nv_bfloat16* rows = nullptr;  // [T, K] where sources are given, else [P, K]
  QuantisedExperts weights;             // [X N, K]
  const int32_t* offsets = nullptr;     // [X + 1]
  const int32_t* sources = nullptr;     // [P], or null: place p has row p
  int64_t num_places = 0, num_chosen = 0;
  int64_t N = 0, K = 0;  // numbers of a result's row, terms of a sum
};

// Returns whether the kernel has these sizes.
bool supports_experts_of_codes(const QuantisedExperts& weights, int64_t N, int64_t K);

// Computes out [P, N], float32 or bfloat16, and returns the error of the launch.
cudaError_t linear_of_experts(const ExpertsOfCodes& product, void* out, bool is_float32, cudaStream_t stream);

}  // namespace tandem::device::cuda
