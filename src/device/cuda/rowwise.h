// Declares the row-wise operations of a forward and backward in bfloat16 on a GPU, those between the matrix products.
// They compute in float32 inside, with one rounding per result. The formulas are those of device/ops.h.
//
// Forward: a row's result depends on that row and its width alone; the width decides how a sum over a row is cut among
// threads. Backward: results are the same for the same inputs; gradients of weights are summed first by the blocks of a
// fixed grid, then over those blocks in order.
//
// All pointers are of the device and 16-byte aligned, tensors are contiguous, widths are multiples of 8
// (supports_width). Every function queues its work on the stream and returns the error of the launch. No torch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/cuda/scratch.h"
#include "device/cuda/served_sizes.h"

namespace tandem::device::cuda {

using bf16 = __nv_bfloat16;

// Computes out = a + b, [n].
cudaError_t add(const bf16* a, const bf16* b, bf16* out, int64_t n, cudaStream_t stream);

// Computes y_TN += bias_N in each row.
cudaError_t add_bias(bf16* y, const bf16* bias, int64_t T, int64_t N, cudaStream_t stream);

// Below, scratch is float32 [num_partials(T), width] for the partial sums of a weight's gradient.

// Computes dbias_N += the sum of dy's rows. scratch is [num_partials(T), N].
cudaError_t add_bias_backward(const bf16* dy, float* dbias, float* scratch, int64_t T, int64_t N, cudaStream_t stream);

cudaError_t rms_norm(const bf16* x, const bf16* w, bf16* y, int64_t T, int64_t E, double eps, cudaStream_t stream);
// Computes dx, and adds to dw unless it is null. scratch is [num_partials(T), E].
cudaError_t rms_norm_backward(const bf16* dy, const bf16* x, const bf16* w, bf16* dx, float* dw, float* scratch,
                              int64_t T, int64_t E, double eps, cudaStream_t stream);

// These compute out_TF = silu(gate) * up of gate_up [T, 2 F], and d(gate_up) of d(out).
cudaError_t silu_mul(const bf16* gate_up, bf16* out, int64_t T, int64_t F, cudaStream_t stream);
cudaError_t silu_mul_backward(bf16* dout, const bf16* gate_up, bf16* dgate_up, int64_t T, int64_t F,
                              cudaStream_t stream);

// The frequencies of the rotation, [head_dim / 2], are handed to kernels by value.
struct Frequencies {
  float values[128];
};
struct QkvLayout {
  int64_t num_heads, num_kv_heads, head_dim;  // head_dim: supports_head_dim()
  Frequencies frequencies;
  double eps;  // epsilon of the norms
};
// Computes q_THK, k_TGK, v_TGK of qkv [T, (H + 2 G) K]: q and k are normalised, if norms are given (both, or null), and
// rotated.
cudaError_t qk_norm_rope(const bf16* qkv, const bf16* q_norm, const bf16* k_norm, const int32_t* positions, bf16* q,
                         bf16* k, bf16* v, int64_t T, const QkvLayout& layout, cudaStream_t stream);
// Computes dqkv. With norms it also adds to dq_norm and dk_norm unless both are null, and needs scratch
// [num_partials(T), 2 head_dim].
cudaError_t qk_norm_rope_backward(const bf16* dq, const bf16* dk, const bf16* dv, const bf16* qkv, const bf16* q_norm,
                                  const bf16* k_norm, const int32_t* positions, bf16* dqkv, float* dq_norm,
                                  float* dk_norm, float* scratch, int64_t T, const QkvLayout& layout,
                                  cudaStream_t stream);

}  // namespace tandem::device::cuda
