// Declares what is done to the rows of places (device/experts.h) between the products of experts: the gather of tokens'
// rows, the sum of a token's places, and the gradient of silu with the places' weights. Formulas are those of
// device/ops.h; sums are float32, with one rounding per result.
//
// A result's row depends on its own places alone. All pointers are of the device, those of bfloat16 and of rows 16-byte
// aligned, widths multiples of 8 (supports_width). Every function queues its work on the stream and returns the error
// of the launch. No torch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace tandem::device::cuda {

// Computes out_PE: row p is the row of token sources[p] / C of x_TE.
cudaError_t gather_tokens(const __nv_bfloat16* x, const int32_t* sources, int64_t P, int64_t num_chosen, int64_t E,
                          __nv_bfloat16* out, cudaStream_t stream);

// Describes the rows of places that sum_of_experts() adds up by places_TC, [T, C]: each times its weight, by one fused
// multiplication and addition.
struct PlacedRows {
  const void* rows;      // [P, E]
  bool are_float32;      // else bfloat16
  const float* weights;  // [T, C], or null: 1
  const int32_t* places;
  int64_t num_chosen;
  // Neither weights, places nor the residual were written by the kernel before: they are read while it still computes.
  bool rest_is_old = false;
};
// Computes out_TE = residual + the sum of each token's places, which are added in order of c, then to the residual,
// which has out's dtype or is null. out is float32 or bfloat16.
cudaError_t sum_of_experts(const PlacedRows& placed, const void* residual, void* out, bool out_is_float32, int64_t T,
                           int64_t E, cudaStream_t stream);

// Computes dgate_up [P, 2 F], weighted [P, F] and dweights [T, C] of da [P, F] and gate_up [P, 2 F]. The products of da
// and the activation are added up in an order that F alone decides.
cudaError_t weighted_silu_backward(const __nv_bfloat16* da, const __nv_bfloat16* gate_up, const int32_t* sources,
                                   const float* weights, int64_t P, int64_t F, __nv_bfloat16* dgate_up,
                                   __nv_bfloat16* weighted, float* dweights, cudaStream_t stream);

}  // namespace tandem::device::cuda
