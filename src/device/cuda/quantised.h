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

}  // namespace tandem::device::cuda
