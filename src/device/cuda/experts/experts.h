// The product of places' rows with their experts' weights in bfloat16, and the gradient of its input
// (device/experts.h), for few places an expert, as decoding has them: it reads the weights of the chosen experts once,
// at the speed of the memory.
//
// Every output has the bits of ordered_product(): one float32 accumulator, terms in ascending order, one rounding. So a
// place's row depends on its token's row and its expert's weights alone, and all tilings give the same bits.
//
// The kernel finds the experts' places on the device. Its grid depends on the numbers of places and experts, so that a
// recorded call serves every routing. No torch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/cuda/experts/route.h"
#include "device/cuda/kernel_choice.h"

namespace tandem::device::cuda {

// All pointers are of the device; rows and weights are contiguous and begin at multiples of 16 bytes.
struct ExpertsProduct {
  const __nv_bfloat16* rows = nullptr;     // [T, K] where sources are given, else [P, K]
  const __nv_bfloat16* weights = nullptr;  // [X N, K]
  const int32_t* ids = nullptr;            // [P]: the experts of a single token, rising; unused where there are more
  const int32_t* offsets = nullptr;        // [X + 1]
  const int32_t* sources = nullptr;        // [P], or null: place p has row p
  int64_t num_experts = 0, num_places = 0, num_chosen = 0;
  int64_t N = 0, K = 0;     // numbers of a result's row, terms of a sum
  bool transposed = false;  // weights are [X K, N]
  // The kernel before did not write ids and offsets: the weights are read while it still computes the rows.
  bool offsets_are_old = false;
  // If set, [P, N / 2]: silu_mul() of the results, which are bfloat16 and whose rows are gate, then up;
  // they are not written where `out` is null. Not transposed.
  __nv_bfloat16* activated = nullptr;
};

constexpr bool supports_experts_product(const ExpertsProduct& p) {
  return p.num_experts <= kMostExperts && p.K % 8 == 0 && (!p.transposed || p.N % 8 == 0) &&
         (p.activated == nullptr || (!p.transposed && p.N % 2 == 0));
}

// Computes out [P, N], float32 or bfloat16, and returns the error of the launch. experts_tiling() names the tiling.
cudaError_t linear_of_experts(const ExpertsProduct& product, ExpertsTiling tiling, void* out, bool is_float32,
                              cudaStream_t stream);
// Does the same with ExpertsTiling::kOneToken.
cudaError_t linear_of_experts_of_token(const ExpertsProduct& product, void* out, bool is_float32, cudaStream_t stream);

}  // namespace tandem::device::cuda
