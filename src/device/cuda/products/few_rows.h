// The product of a few rows with a weight, out [T, N] = x [T, K] w [N, K]^T, for decode steps of few sequences, where
// the weight's bytes and the launches of kernels take the time. Every output has the bits of ordered_product().
//
// The kernel takes the weight into shared memory, as far as it fits, before it waits for the kernel before it
// (device/cuda/launch.cuh). So the memory is read while kernels that have little to read compute x. Only the code for
// compute capability 9.0 has it. No torch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/cuda/products/quantised.h"

namespace tandem::device::cuda {

// All pointers are of the device; matrices are contiguous and begin at multiples of 16 bytes.
struct FewRowsProduct {
  const __nv_bfloat16* x = nullptr;  // [T, K]
  const __nv_bfloat16* w = nullptr;  // [N, K]; null for a quantised weight
  const void* added = nullptr;       // [T, N] of out's dtype, added before the rounding; or null
  void* out = nullptr;               // [T, N]
  bool is_float32 = false;           // dtype of out; else bfloat16
  int64_t T = 0, N = 0, K = 0;
  // No kernel that may still run writes the weight, so that it may be read before the wait. Codes are never written.
  bool weight_is_old = false;
};

// Returns whether the current device has the kernel and products of these sizes are faster by it than by the library.
bool supports_few_rows(int64_t T, int64_t N, int64_t K);

// Computes out and returns the error of the launch. The sizes are supported.
cudaError_t linear_of_few_rows(const FewRowsProduct& product, cudaStream_t stream);

// Returns how many rows the kernel multiplies with codes of a quantised weight; 0 if it has not these sizes.
int64_t most_rows_with_codes(const QuantisedWeight& w, int64_t N, int64_t K);

// Computes out of at most so many rows, with the bits of the product of the weights that the codes stand for.
cudaError_t linear_of_few_rows(const FewRowsProduct& product, const QuantisedWeight& w, cudaStream_t stream);

}  // namespace tandem::device::cuda
