// Eight numbers at a time, of float32 or bfloat16, as float32: shared by the kernels that add up ranks' parts.
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

// Rounds to the dtype of `of`, which is not read.
__device__ inline float rounded(float x, const __nv_bfloat16* /*of*/) {
  return __bfloat162float(__float2bfloat16_rn(x));
}
__device__ inline float rounded(float x, const float* /*of*/) { return x; }

// Processes kAhead eights, `stride` apart, those before `end`: sum = ((part 0 + part 1) + ...) in float32, rounded;
// then residual + that, rounded again, unless `residual` is null. place_of(p) gives the address of part p, as Part*.
// All loads of a part are in flight before the first is used: they may come from another device.
template <int kAhead, int kMostParts, typename Sum, typename PlaceOf>
__device__ inline void add_up(PlaceOf place_of, int num_parts, const Sum* residual, Sum* sum, int64_t first,
                              int64_t stride, int64_t end) {
  float total[kAhead][kEight];
#pragma unroll
  for (int part = 0; part < kMostParts; ++part) {
    if (part >= num_parts) break;
    float x[kAhead][kEight];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (first + a * stride < end) load_eight(place_of(part) + (first + a * stride) * kEight, x[a]);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
#pragma unroll
      for (int j = 0; j < kEight; ++j) total[a][j] = part == 0 ? x[a][j] : total[a][j] + x[a][j];
    }
  }
#pragma unroll
  for (int a = 0; a < kAhead; ++a) {
    const int64_t i = first + a * stride;
    if (i >= end) continue;
    if (residual != nullptr) {
      float x[kEight];
      load_eight(residual + i * kEight, x);
#pragma unroll
      for (int j = 0; j < kEight; ++j) total[a][j] = x[j] + rounded(total[a][j], residual);
    }
    store_eight(sum + i * kEight, total[a]);
  }
}

}  // namespace tandem::device::cuda
