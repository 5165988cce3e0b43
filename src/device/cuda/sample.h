// Draws tokens from rows of logits on the GPU, by the rule of device/sampler.h: the same token from the same logits as
// on the CPU, bit for bit. No torch.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/draw.h"

namespace tandem::device::cuda {

// draws [num_draws], logits [R, V] float32 (rows at multiples of 16 bytes where V is a multiple of 4) and all results
// [num_draws] lie on the device; several draws may name one row. Draw i gives
//   token[i]     the token; -1: the row holds a NaN or an infinity, then both log-probs are 0
//   logprob[i]   log softmax(logits / temperature)[token], at temperature 1 where that is 0; as logprob() gives
//   behavior[i]  the log-prob in the truncated distribution that the token was drawn from; greedy: 0
// A draw of row -1 writes nothing. A draw's results do not depend on the others. The launch depends on num_draws and
// vocab_size alone, so that it can be captured in a graph. It takes no memory but the arguments'.
// Returns the error of cudaLaunchKernelEx, or cudaErrorInvalidValue if vocab_size is not in 1..2^30.
cudaError_t sample(const float* logits, const Draw* draws, int64_t num_draws, int64_t vocab_size, int32_t* token,
                   float* logprob, float* behavior, cudaStream_t stream);

}  // namespace tandem::device::cuda
