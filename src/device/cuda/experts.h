// The product of places' rows with their experts' weights in bfloat16 (device/experts.h), for few places an expert, as
// decoding has them: it reads the weights of the chosen experts once, at the speed of the memory.
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

namespace tandem::device::cuda {

// All pointers are of the device; rows and weights are contiguous and begin at multiples of 16 bytes.
struct ExpertsProduct {
  const __nv_bfloat16* rows;     // [T, K] where sources are given, else [P, K]
  const __nv_bfloat16* weights;  // [X N, K]
  const int32_t* offsets;        // [X + 1]
  const int32_t* sources;        // [P], or null: place p has row p
  int64_t num_experts, num_places, num_chosen;
  int64_t N, K;
};

// K is the depth of the sums; N may be any.
constexpr bool supports_experts_product(int64_t num_experts, int64_t K) { return num_experts <= 512 && K % 8 == 0; }

// A tiling says how many rows of weights and how many places a block has.
constexpr int kNumExpertsTilings = 5;
// Returns the fastest tiling for so many places: by bench/results/experts.md.
int experts_tiling(int64_t num_places, int64_t num_experts);

// Computes out [P, N], float32 or bfloat16, and returns the error of the launch.
cudaError_t linear_of_experts(const ExpertsProduct& product, int tiling, void* out, bool is_float32,
                              cudaStream_t stream);

}  // namespace tandem::device::cuda
