// optimizer.h has the contract.
#include "device/cuda/optimizer.h"

#include <cmath>

namespace tandem::device::cuda {
namespace {

constexpr int kThreads = 256;

__device__ float4 load_once(const float* p) { return __ldcs(reinterpret_cast<const float4*>(p)); }
__device__ void store_once(float* p, float4 x) { __stcs(reinterpret_cast<float4*>(p), x); }
__device__ void store_weight(float* p, float4 x) { store_once(p, x); }
__device__ void store_weight(__nv_bfloat16* p, float4 x) {
  uint2 packed;
  auto* pairs = reinterpret_cast<__nv_bfloat162*>(&packed);
  pairs[0] = __floats2bfloat162_rn(x.x, x.y);
  pairs[1] = __floats2bfloat162_rn(x.z, x.w);
  __stcs(reinterpret_cast<uint2*>(p), packed);
}

// This is Loss::adamw_as of device/cpu/loss_inl.h, operation by operation.
__device__ void update(const AdamwParams& params, float grad, float& m, float& v, float& master) {
  const float g = __fmul_rn(grad, params.grad_scale);
  m = __fmaf_rn(params.one_minus_beta1, g, __fmul_rn(params.beta1, m));
  v = __fmaf_rn(__fmul_rn(params.one_minus_beta2, g), g, __fmul_rn(params.beta2, v));
  const float denominator = __fmaf_rn(__fsqrt_rn(v), params.inverse_sqrt_correction2, params.eps);
  // The decay joins the update before the weight's only rounding, because 1 - lr * weight decay is no float32 number.
  const float step = __fmaf_rn(params.decay, master, __fdiv_rn(m, denominator));
  master = __fmaf_rn(-params.lr_scaled, step, master);
}

template <typename Weight>
__global__ void __launch_bounds__(kThreads, 4)
    adamw_kernel(Weight* weight, float* master, const float* grad, float* m, float* v, int64_t n, AdamwParams params) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4;
  if (i + 4 <= n) {
    const float4 g = load_once(grad + i);
    float4 m4 = load_once(m + i), v4 = load_once(v + i), w4 = load_once(master + i);
    update(params, g.x, m4.x, v4.x, w4.x);
    update(params, g.y, m4.y, v4.y, w4.y);
    update(params, g.z, m4.z, v4.z, w4.z);
    update(params, g.w, m4.w, v4.w, w4.w);
    store_once(m + i, m4);
    store_once(v + i, v4);
    store_once(master + i, w4);
    if (weight != nullptr) store_weight(weight + i, w4);
  } else {
    for (int64_t j = i; j < n; ++j) {
      update(params, grad[j], m[j], v[j], master[j]);
      if (weight != nullptr) weight[j] = static_cast<Weight>(master[j]);
    }
  }
}

// A block of threads sums a block of numbers; its size decides the order, together with the number of threads.
constexpr int kSumThreads = 128;

// Returns the sum over a block's threads, in thread 0, by halves.
__device__ double block_sum(double x) {
  __shared__ double sums[kSumThreads / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_down_sync(0xffffffffU, x, offset);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0.0;
  if (threadIdx.x == 0) {
    for (const double part : sums) sum += part;
  }
  return sum;
}

__device__ double with_square(double sum, float x) {
  const auto wide = static_cast<double>(x);
  return __fma_rn(wide, wide, sum);  // the product of two float32 is exact in float64
}

__global__ void __launch_bounds__(kSumThreads)
    block_sums(const float* x, int64_t n, int64_t block_elements, double* sums_of_blocks) {
  const int64_t begin = blockIdx.x * block_elements, left = n - begin;
  const int64_t count = left < block_elements ? left : block_elements, in_fours = count / 4 * 4;
  const float* block = x + begin;
  double sums[4] = {};
#pragma unroll 8
  for (int64_t i = threadIdx.x * 4; i < in_fours; i += kSumThreads * 4) {
    const float4 four = load_once(block + i);
    sums[0] = with_square(sums[0], four.x);
    sums[1] = with_square(sums[1], four.y);
    sums[2] = with_square(sums[2], four.z);
    sums[3] = with_square(sums[3], four.w);
  }
  if (in_fours + threadIdx.x < count) sums[0] = with_square(sums[0], block[in_fours + threadIdx.x]);
  const double sum = block_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  if (threadIdx.x == 0) sums_of_blocks[blockIdx.x] = sum;
}

}  // namespace

AdamwParams adamw_params(double lr, double beta1, double beta2, double eps, double weight_decay, double grad_scale,
                         int64_t step) {
  const double correction1 = 1.0 - std::pow(beta1, static_cast<double>(step));
  const double correction2 = 1.0 - std::pow(beta2, static_cast<double>(step));
  return {static_cast<float>(lr / correction1),
          static_cast<float>(weight_decay * correction1),
          static_cast<float>(beta1),
          static_cast<float>(1.0 - beta1),
          static_cast<float>(beta2),
          static_cast<float>(1.0 - beta2),
          static_cast<float>(eps),
          static_cast<float>(1.0 / std::sqrt(correction2)),
          static_cast<float>(grad_scale)};
}

template <typename Weight>
cudaError_t adamw(Weight* weight, float* master, const float* grad, float* m, float* v, int64_t n,
                  const AdamwParams& params, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  if (static_cast<const void*>(weight) == static_cast<const void*>(master)) weight = nullptr;
  const int64_t blocks = (n + kThreads * 4 - 1) / (kThreads * 4);
  adamw_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(weight, master, grad, m, v, n, params);
  return cudaGetLastError();
}
template cudaError_t adamw(float*, float*, const float*, float*, float*, int64_t, const AdamwParams&, cudaStream_t);
template cudaError_t adamw(__nv_bfloat16*, float*, const float*, float*, float*, int64_t, const AdamwParams&,
                           cudaStream_t);

cudaError_t sums_of_squares(const float* x, int64_t n, int64_t block_elements, double* sums, cudaStream_t stream) {
  const int64_t blocks = (n + block_elements - 1) / block_elements;
  if (blocks > 0) {
    block_sums<<<static_cast<unsigned>(blocks), kSumThreads, 0, stream>>>(x, n, block_elements, sums);
  }
  return cudaGetLastError();
}

}  // namespace tandem::device::cuda
