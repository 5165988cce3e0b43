// The product that defines the bits of all others. On the tensor cores, it has one float32 accumulator an output, to
// which the terms are added in ascending order, sixteen at a time, and which is rounded once. Kernels of libraries are
// compared with it bit by bit (linear_plans.h), and it stands in where none of theirs is equal. It is exact for any
// sizes, and slow: a tenth of what a library reaches. No torch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace tandem::device::cuda {

// Describes an operand [lines, depth]: element (i, k) is at data[i * line_stride + k * depth_stride].
struct Operand {
  const __nv_bfloat16* data;
  int64_t line_stride, depth_stride;
};

// Computes out [I, J] = sum over k of p[i, k] q[j, k], and added [I, J] (of out's dtype, or null). out is float32 or
// bfloat16.
cudaError_t ordered_product(const Operand& p, const Operand& q, const void* added, void* out, bool is_float32,
                            int64_t I, int64_t J, int64_t depth, cudaStream_t stream);

// Fills an operand [lines, depth] with data for comparisons of such products: exponents over a wide range, and terms of
// which each has its negative far away, so that the sum is what rounding leaves: another order of the sums changes
// nearly every output. One of the operands has `sign` -1.
cudaError_t fill_cancelling(__nv_bfloat16* data, int64_t line_stride, int64_t depth_stride, int64_t lines,
                            int64_t depth, uint32_t seed, float sign, cudaStream_t stream);
// Fills with small numbers, of the size of the sums that fill_cancelling() leaves.
cudaError_t fill_small(void* data, bool is_float32, int64_t n, uint32_t seed, cudaStream_t stream);

// Adds to *count, which is on the device, how many of n elements differ in a bit.
cudaError_t count_differences(const void* a, const void* b, bool is_float32, int64_t n, unsigned long long* count,
                              cudaStream_t stream);

}  // namespace tandem::device::cuda
