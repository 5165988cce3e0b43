// Sixteen bytes at a time, numbers of both dtypes, sums over warps and blocks in a fixed order, and sigmoid: shared by
// most kernels.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace tandem::device::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = ~0U;

// Holds eight bfloat16.
struct alignas(16) Vector {
  __nv_bfloat162 pairs[4];
};

__device__ inline void unpack(const Vector& v, float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = __low2float(v.pairs[i]);
    x[2 * i + 1] = __high2float(v.pairs[i]);
  }
}

__device__ inline Vector pack(const float (&x)[8]) {
  Vector v;
#pragma unroll
  for (int i = 0; i < 4; ++i) v.pairs[i] = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
  return v;
}

__device__ inline Vector load(const __nv_bfloat16* from) { return *reinterpret_cast<const Vector*>(from); }
__device__ inline void store(__nv_bfloat16* to, const Vector& v) { *reinterpret_cast<Vector*>(to) = v; }

// Numbers of both dtypes are computed as float32, and rounded once as they are written.
__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline void write(float* to, float x) { *to = x; }
__device__ inline void write(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }

__device__ inline float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

// Returns the sum of all lanes in every lane.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

// Returns the sum of all threads in every thread; blockDim.x is a multiple of 32. `shared` [32] is free again after the
// next barrier.
__device__ inline float block_sum(float x, float* shared) {
  const unsigned warp = threadIdx.x / kWarp, num_warps = blockDim.x / kWarp;
  x = warp_sum(x);
  if (threadIdx.x % kWarp == 0) shared[warp] = x;
  __syncthreads();
  float sum = 0.0F;
  for (unsigned i = 0; i < num_warps; ++i) sum += shared[i];
  return sum;
}

}  // namespace tandem::device::cuda
