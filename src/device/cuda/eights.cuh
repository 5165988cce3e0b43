// Eight numbers at a time, of float32 or bfloat16, as float32: what kernels that add up ranks' parts share.
#pragma once

#include "device/cuda/vectors.cuh"

namespace tandem::device::cuda {

constexpr int kEight = 8;

__device__ inline void load_eight(const __nv_bfloat16* from, float (&x)[kEight]) { unpack(load(from), x); }
__device__ inline void load_eight(const float* from, float (&x)[kEight]) {
  const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}
__device__ inline void store_eight(__nv_bfloat16* to, const float (&x)[kEight]) { store(to, pack(x)); }
__device__ inline void store_eight(float* to, const float (&x)[kEight]) {
  reinterpret_cast<float4*>(to)[0] = {x[0], x[1], x[2], x[3]};
  reinterpret_cast<float4*>(to)[1] = {x[4], x[5], x[6], x[7]};
}

// To the dtype of `of`, which is not read.
__device__ inline float rounded(float x, const __nv_bfloat16* /*of*/) {
  return __bfloat162float(__float2bfloat16_rn(x));
}
__device__ inline float rounded(float x, const float* /*of*/) { return x; }

}  // namespace tandem::device::cuda
