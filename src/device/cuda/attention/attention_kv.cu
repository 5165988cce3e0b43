// Kernels that move keys, values and their gradients between rows and the paged cache. Each row has a block of threads,
// and each thread moves 16 bytes a step.
#include <cuda_bf16.h>

#include <algorithm>

#include "device/block.h"
#include "device/cuda/attention/attention.h"
#include "device/cuda/launch.cuh"

namespace tandem::device::cuda {
namespace {

constexpr int kVector = 8;  // elements of one access
using Vector = uint4;

struct Cache {
  __nv_bfloat16* data;
  int64_t block_stride;
  int head_dim, vectors;  // vectors: number of vectors of the keys of one token

  __device__ __nv_bfloat16* key(int slot, int vector) const {
    constexpr int kBlock = kBlockTokens;
    const int element = vector * kVector, head = element / head_dim;
    return data + (slot / kBlock) * block_stride + (head * kBlock + slot % kBlock) * head_dim + element % head_dim;
  }
  __device__ int64_t value_offset() const { return int64_t{kBlockTokens} * vectors * kVector; }
};

Cache cache_of(const PagedKv& kv) {
  return {static_cast<__nv_bfloat16*>(kv.data), kv.block_stride, static_cast<int>(kv.head_dim),
          static_cast<int>(kv.num_kv_heads * kv.head_dim / kVector)};
}

__global__ void append_kernel(Cache cache, const Vector* k, const Vector* v, const int32_t* tokens,
                              const int32_t* slots) {
  let_next_begin();
  wait_for_inputs();
  const int slot = slots[blockIdx.x];
  if (slot < 0) return;
  const int64_t row = int64_t{tokens == nullptr ? static_cast<int>(blockIdx.x) : tokens[blockIdx.x]} * cache.vectors;
  for (int i = threadIdx.x; i < cache.vectors; i += blockDim.x) {
    __nv_bfloat16* const key = cache.key(slot, i);
    *reinterpret_cast<Vector*>(key) = k[row + i];
    *reinterpret_cast<Vector*>(key + cache.value_offset()) = v[row + i];
  }
}

__global__ void gather_kernel(Cache cache, const int32_t* slots, Vector* k, Vector* v) {
  const int slot = slots[blockIdx.x];
  const int64_t row = int64_t{blockIdx.x} * cache.vectors;
  for (int i = threadIdx.x; i < cache.vectors; i += blockDim.x) {
    const __nv_bfloat16* const key = cache.key(slot, i);
    k[row + i] = *reinterpret_cast<const Vector*>(key);
    v[row + i] = *reinterpret_cast<const Vector*>(key + cache.value_offset());
  }
}

__device__ void add(float (&sum)[kVector], const Vector& x) {
  const auto* const pairs = reinterpret_cast<const __nv_bfloat162*>(&x);
#pragma unroll
  for (int j = 0; j < kVector / 2; ++j) {
    const float2 pair = __bfloat1622float2(pairs[j]);
    sum[2 * j] += pair.x;
    sum[2 * j + 1] += pair.y;
  }
}

__device__ Vector rounded(const float (&sum)[kVector]) {
  Vector x;
  auto* const pairs = reinterpret_cast<__nv_bfloat162*>(&x);
#pragma unroll
  for (int j = 0; j < kVector / 2; ++j) pairs[j] = __floats2bfloat162_rn(sum[2 * j], sum[2 * j + 1]);
  return x;
}

__global__ void reduce_kernel(const Vector* dk_expanded, const Vector* dv_expanded, const int32_t* offsets,
                              const int32_t* rows, int vectors, Vector* dk, Vector* dv) {
  const int begin = offsets[blockIdx.x], end = offsets[blockIdx.x + 1];
  for (int i = threadIdx.x; i < vectors; i += blockDim.x) {
    float k_sum[kVector] = {}, v_sum[kVector] = {};
    for (int j = begin; j < end; ++j) {
      const int64_t at = int64_t{rows[j]} * vectors + i;
      add(k_sum, dk_expanded[at]);
      add(v_sum, dv_expanded[at]);
    }
    dk[int64_t{blockIdx.x} * vectors + i] = rounded(k_sum);
    dv[int64_t{blockIdx.x} * vectors + i] = rounded(v_sum);
  }
}

int threads_for(int vectors) { return std::clamp((vectors + 31) / 32 * 32, 32, 256); }

}  // namespace

cudaError_t kv_append(const PagedKv& kv, const void* k_TGK, const void* v_TGK, const int32_t* tokens,
                      const int32_t* slots, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  const Cache cache = cache_of(kv);
  return launch_dependent(append_kernel, n, static_cast<uint32_t>(n), threads_for(cache.vectors), 0, stream, cache,
                          k_TGK, v_TGK, tokens, slots);
}

cudaError_t gather_kv(const PagedKv& kv, const int32_t* slots, int64_t n, void* k_nGK, void* v_nGK,
                      cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  const Cache cache = cache_of(kv);
  gather_kernel<<<static_cast<uint32_t>(n), threads_for(cache.vectors), 0, stream>>>(
      cache, slots, static_cast<Vector*>(k_nGK), static_cast<Vector*>(v_nGK));
  return cudaGetLastError();
}

cudaError_t reduce_kv_grad(const KvGradSum& sum, cudaStream_t stream) {
  if (sum.num_tokens == 0) return cudaSuccess;
  const int vectors = static_cast<int>(sum.num_kv_heads * sum.head_dim / kVector);
  reduce_kernel<<<static_cast<uint32_t>(sum.num_tokens), threads_for(vectors), 0, stream>>>(
      static_cast<const Vector*>(sum.dk_nGK), static_cast<const Vector*>(sum.dv_nGK), sum.token_offsets,
      sum.rows_of_token, vectors, static_cast<Vector*>(sum.dk_TGK), static_cast<Vector*>(sum.dv_TGK));
  return cudaGetLastError();
}

}  // namespace tandem::device::cuda
