// Quantised matrices (device/quantisation.h) on the GPU, and the bfloat16 weights that their codes stand for. No torch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/quantisation.h"

namespace tandem::device::cuda {

// A quantised weight [N, K]: its parts one below the other, all of one kind. What they point to is the device's memory.
struct QuantisedWeight {
  static constexpr int kMostParts = 3;
  QuantisedBytes parts[kMostParts] = {};
  int64_t rows[kMostParts] = {};
  int num_parts = 0;
};

// Writes the weights, out [N, K].
cudaError_t dequantise(const QuantisedWeight& w, __nv_bfloat16* out, cudaStream_t stream);

// The weights of experts [X N, K]: those of each have the same parts, and lie so many bytes behind those of the one
// before.
struct QuantisedExperts {
  QuantisedWeight first;
  int64_t num_experts = 0, bytes_of_expert = 0;
};

// Writes the weights of the experts that have places, out [X N, K]: expert e has some where offsets[e] < offsets[e +
// 1], int32 [X + 1] on the device. The rows of the others stay as they are.
cudaError_t dequantise(const QuantisedExperts& w, const int32_t* offsets, __nv_bfloat16* out, cudaStream_t stream);

}  // namespace tandem::device::cuda
