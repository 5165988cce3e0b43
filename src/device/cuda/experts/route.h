// Declares the kernels that choose the experts of tokens and order their places (device/experts.h), and the gradient of
// that choice. A row of logits has X numbers, of which C are chosen.
//
// A row's choice and its weights depend on that row alone. Places come from counts of integers, so that no order of
// threads shows. Every function queues its work on the stream and returns the error of the launch. No torch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/cuda/served_sizes.h"

namespace tandem::device::cuda {

// The results of route(), which device/experts.h describes.
struct RoutingMemory {
  int32_t* ids;      // [T, C]
  float* weights;    // [T, C]
  int32_t* offsets;  // [X + 1]
  int32_t* places;   // [T, C]
  int32_t* sources;  // [T C]
  int32_t* scratch;  // [order_places_scratch(T, X)]
};
// Chooses experts, whose ids rise in a row, and orders the places. If `normalises`, weights are a softmax over the
// chosen logits, added up by rising id; else over all. If a logit of the row is not finite, its weights are NaN.
cudaError_t route(const float* logits, int64_t T, int64_t num_experts, int64_t num_chosen, bool normalises,
                  const RoutingMemory& to, cudaStream_t stream);

// Computes dlogits_TX, bfloat16 or float32, of dweights_TC, given the logits and the results of route().
cudaError_t route_backward(const float* dweights, const float* logits, const int32_t* ids, const float* weights,
                           int64_t T, int64_t num_experts, int64_t num_chosen, bool normalises, float* dlogits,
                           cudaStream_t stream);
cudaError_t route_backward(const float* dweights, const float* logits, const int32_t* ids, const float* weights,
                           int64_t T, int64_t num_experts, int64_t num_chosen, bool normalises, __nv_bfloat16* dlogits,
                           cudaStream_t stream);

}  // namespace tandem::device::cuda
