// AdamW and the gradient's norm on the GPU, each one pass over the memory. No torch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/scratch.h"

namespace tandem::device::cuda {

// The step's constants, as in the CPU's kernels (device/cpu/kernels.h), made in float64 on the host.
struct AdamwParams {
  float lr_scaled;                                       // lr / (1 - beta1^step)
  float decay;                                           // weight decay * (1 - beta1^step): lr_scaled times it is lr wd
  float beta1, one_minus_beta1, beta2, one_minus_beta2;  // the complements rounded from float64
  float eps;
  float inverse_sqrt_correction2;  // 1 / sqrt(1 - beta2^step)
  float grad_scale;
};
// `step` counts from 1.
AdamwParams adamw_params(double lr, double beta1, double beta2, double eps, double weight_decay, double grad_scale,
                         int64_t step);

// Takes one step on flat ranges [n] of float32 on the device, which begin at multiples of 16 bytes (the bfloat16
// weight: 8); Ops::AdamW has the semantics. master, m and v are updated, weight = master rounded; a float32 weight may
// be master itself or null. An element's result depends on that element alone, and has the bits of the CPU's vector
// kernels. Weight is float or __nv_bfloat16.
template <typename Weight>
cudaError_t adamw(Weight* weight, float* master, const float* grad, float* m, float* v, int64_t n,
                  const AdamwParams& params, cudaStream_t stream);

// Computes sums[b] = the sum of squares in float64 of block b of x [n], in an order that the block's size alone
// decides. A block has block_elements, a multiple of 4, the last one perhaps fewer. x, which begins at a multiple of 16
// bytes, and sums lie on the device.
cudaError_t sums_of_squares(const float* x, int64_t n, int64_t block_elements, double* sums, cudaStream_t stream);

}  // namespace tandem::device::cuda
