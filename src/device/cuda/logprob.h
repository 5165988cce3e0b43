// Computes log-probabilities and entropies over rows of logits on the GPU, and their backward. No torch.
//
// A row's results depend on that row, its target and the temperature alone: the sums of the forward are exact
// (device/sampling_weight.h), so that no cut of a row can change them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace tandem::device::cuda {

// Everything lies on the device. logits [R, V] float32 begins at a multiple of 16 bytes, targets are [R] int32, and
// inverse_temperature = float(1 / temperature). The results are
//   logp [R]     log softmax(logits * inverse_temperature)[target], with the bits that sample() gives; 0 for target -1
//   entropy [R]  entropy of that softmax; may be null
//   lse [R]      logsumexp(logits * inverse_temperature), for the backward
// A row with a NaN or an infinity gives NaN in all three, but 0 as logp where the target is -1.
// Returns the error of cudaLaunchKernelEx, or cudaErrorInvalidValue if vocab_size is not in 1..2^30.
cudaError_t logprob(const float* logits, const int32_t* targets, int64_t num_rows, int64_t vocab_size,
                    float inverse_temperature, float* logp, float* entropy, float* lse, cudaStream_t stream);

// Computes dlogits [R, V] = d(sum_r dlogp_r logp_r + dentropy_r entropy_r) / d logits: with p = softmax(logits /
// temperature),
//   (dlogp (1[v = target] - p) - dentropy p (log p + entropy)) / temperature,
// in float32 and rounded once. Where the target is -1, dlogp is taken as 0. dentropy [R] may be null, then entropy is
// not read. dlogits begins at a multiple of 16 bytes; as float32 it may be `logits` itself. Gradient is float or
// __nv_bfloat16.
template <typename Gradient>
cudaError_t logprob_backward(const float* logits, const int32_t* targets, const float* lse, const float* dlogp,
                             const float* dentropy, const float* entropy, int64_t num_rows, int64_t vocab_size,
                             float inverse_temperature, Gradient* dlogits, cudaStream_t stream);

}  // namespace tandem::device::cuda
