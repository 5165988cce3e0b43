// Data on which an implementation of the gradient of attention is checked, and the gradient of them in float64. Kernels
// of a few lines, for some hundreds of rows and keys. No torch.
//
// Tensors are those of PartsOperands, for rows [num_rows, heads, K] and keys [num_keys, KV heads, K]. What belongs to
// no part is NaN, bits 0xffff, in inputs, and has to stay what it was in outputs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/cuda/attention/attention_parts.h"
#include "device/cuda/attention/cudnn_attention.h"

namespace tandem::device::cuda {

// Holds parts of one form, on the device.
struct CheckedParts {
  const AttentionPart* parts;
  int64_t num_parts = 0, most_rows = 0, most_keys = 0;
  PartForm form = PartForm::kCausal;
  AttentionHeads heads;
};

// Draws q, k, v and dout of the parts, and computes out and lse from them. All other memory keeps its bits.
cudaError_t draw_checked(const CheckedParts& parts, void* q, void* k, void* v, void* out, void* dout, float* lse,
                         cudaStream_t stream);

// Adds to errors[0..2] the squares of the differences of dq, dk and dv from the gradient in float64, and to
// squares[0..2] the squares of that gradient, of all parts. Both are zeroed by the caller. A NaN makes an error NaN.
struct GradientErrors {
  double errors[3], squares[3];
};
cudaError_t compare_checked(const CheckedParts& parts, const PartsOperands& operands, GradientErrors* errors,
                            cudaStream_t stream);

}  // namespace tandem::device::cuda
