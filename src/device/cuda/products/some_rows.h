// The product of some rows with a weight, out [T, N] = x [T, K] w [N, K]^T, for decode steps of up to 32 sequences,
// where the weight's bytes take most of the time. Every output has the bits of ordered_product().
//
// Like the kernel of few_rows.h, this one begins to copy the weight to shared memory while the kernel before it still
// computes x (device/cuda/launch.cuh). Only the code for compute capability 9.0 has it. No torch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/cuda/products/few_rows.h"

namespace tandem::device::cuda {

// Returns whether the current device has the kernel and products of these sizes are faster by it than by the library.
bool supports_some_rows(int64_t T, int64_t N, int64_t K);

// Computes out and returns the error of the launch. The sizes are supported.
cudaError_t linear_of_some_rows(const FewRowsProduct& product, cudaStream_t stream);

}  // namespace tandem::device::cuda
