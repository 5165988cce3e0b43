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

// Chooses ids_TC, rising in a row, and weights_TC. If `normalises`, weights are a softmax over the chosen logits, added
// up by rising id; else over all. If a logit of the row is not finite, its weights are NaN.
cudaError_t route(const float* logits, int64_t T, int64_t num_experts, int64_t num_chosen, bool normalises,
                  int32_t* ids, float* weights, cudaStream_t stream);

// Computes offsets_X1, places_TC and sources_P of ids_TC. scratch is int32 [order_places_scratch(T, X)].
cudaError_t order_places(const int32_t* ids, int64_t T, int64_t num_experts, int64_t num_chosen, int32_t* offsets,
                         int32_t* places, int32_t* sources, int32_t* scratch, cudaStream_t stream);

// Computes dlogits_TX, bfloat16 or float32, of dweights_TC, given the logits and the results of route().
cudaError_t route_backward(const float* dweights, const float* logits, const int32_t* ids, const float* weights,
                           int64_t T, int64_t num_experts, int64_t num_chosen, bool normalises, float* dlogits,
                           cudaStream_t stream);
cudaError_t route_backward(const float* dweights, const float* logits, const int32_t* ids, const float* weights,
                           int64_t T, int64_t num_experts, int64_t num_chosen, bool normalises, __nv_bfloat16* dlogits,
                           cudaStream_t stream);

}  // namespace tandem::device::cuda
