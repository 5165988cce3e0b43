// The kernels of attention_check.h: a block of one thread for each number of a head computes a row, or a key.
#include <cuda_bf16.h>

#include <cmath>

#include "device/cuda/attention/attention_check.h"

namespace tandem::device::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr uint32_t kSeed = 20261127;
constexpr int kMostThreads = 256;  // the largest head

// Returns a number from about -2 to 2, by its place alone: the sum of four uniform ones.
__device__ float drawn(uint64_t place, uint32_t stream) {
  uint64_t bits = (place + 1) * 0x9E3779B97F4A7C15ULL + (uint64_t{stream} << 32 | kSeed);
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBULL;
  bits ^= bits >> 31;
  float sum = 0.0F;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>(bits >> (16 * i) & 0xffff) / 65536.0F - 0.5F;
  return 1.7F * sum;
}

// Adds up one number of each thread; every thread gets the sum.
__device__ double block_sum(double x, double* shared) {
  __syncthreads();
  shared[threadIdx.x] = x;
  __syncthreads();
  // The largest power of two below the number of threads comes first.
  for (int half = 1 << (31 - __clz(static_cast<int>(blockDim.x) - 1)); half > 0; half /= 2) {
    if (threadIdx.x < half && threadIdx.x + half < blockDim.x) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  return shared[0];
}

struct Tensors {
  const bf16 *q, *k, *v, *out, *dout;
  const float* lse;
  int group, kv_heads;
  PartForm form;

  __device__ int64_t query(int64_t row, int head) const {
    return ((row * group * kv_heads + head) * int64_t{blockDim.x}) + threadIdx.x;
  }
  __device__ int64_t key(int64_t key, int kv_head) const {
    return (key * kv_heads + kv_head) * int64_t{blockDim.x} + threadIdx.x;
  }
  __device__ double scale() const { return 1.0 / sqrt(static_cast<double>(blockDim.x)); }
  __device__ int64_t lse_of(int64_t row, int head) const { return row * group * kv_heads + head; }
  // Row i of a part sees its keys [0, end_key), as their form says.
  __device__ int end_key(int row, const AttentionPart& part) const {
    return static_cast<int>(form == PartForm::kFull ? part.keys : part.keys - part.rows + row + 1);
  }
};

__device__ double number(const bf16* data, int64_t at) { return static_cast<double>(__bfloat162float(data[at])); }

__global__ void draw_kernel(const AttentionPart* parts, bf16* data, int heads, bool is_keys, float scale,
                            uint32_t stream) {
  const AttentionPart part = parts[blockIdx.z];
  if (blockIdx.x >= (is_keys ? part.keys : part.rows)) return;
  const int64_t at = ((is_keys ? part.key : part.row) + blockIdx.x) * heads + blockIdx.y;
  data[at * blockDim.x + threadIdx.x] = __float2bfloat16(scale * drawn(at * blockDim.x + threadIdx.x, stream));
}

// Block (i, head, part): row i of the part.
__global__ void forward_kernel(const AttentionPart* parts, Tensors t, bf16* out, float* lse) {
  const AttentionPart part = parts[blockIdx.z];
  if (blockIdx.x >= part.rows) return;
  __shared__ double shared[kMostThreads];
  const int64_t row = part.row + blockIdx.x;
  const int head = blockIdx.y, kv_head = head / t.group;
  const int keys = t.end_key(static_cast<int>(blockIdx.x), part);
  const double q = number(t.q, t.query(row, head));
  double most = -INFINITY, sum = 0.0, y = 0.0;
  for (int j = 0; j < keys; ++j) {
    const double score = block_sum(q * number(t.k, t.key(part.key + j, kv_head)), shared) * t.scale();
    const double now = fmax(most, score), shrink = exp(most - now), p = exp(score - now);
    sum = sum * shrink + p;
    y = y * shrink + p * number(t.v, t.key(part.key + j, kv_head));
    most = now;
  }
  out[t.query(row, head)] = __double2bfloat16(y / sum);
  if (threadIdx.x == 0) lse[t.lse_of(row, head)] = static_cast<float>(most + log(sum));
}

// Returns a probability, and its gradient times it, of one row, head and key. `dot` is the sum of out * dout.
__device__ double2 probability(const Tensors& t, int64_t row, int head, int64_t key, double dot, double* shared) {
  const int kv_head = head / t.group;
  const double score = block_sum(number(t.q, t.query(row, head)) * number(t.k, t.key(key, kv_head)), shared);
  const double p = exp(score * t.scale() - static_cast<double>(t.lse[t.lse_of(row, head)]));
  const double dp = block_sum(number(t.dout, t.query(row, head)) * number(t.v, t.key(key, kv_head)), shared);
  return {p, p * (dp - dot)};
}

__device__ double out_dot(const Tensors& t, int64_t row, int head, double* shared) {
  return block_sum(number(t.out, t.query(row, head)) * number(t.dout, t.query(row, head)), shared);
}

__device__ void compare(const bf16* got, int64_t at, double want, GradientErrors* errors, int which, double* shared) {
  const double difference = number(got, at) - want;
  const double error = block_sum(difference * difference, shared), square = block_sum(want * want, shared);
  if (threadIdx.x != 0) return;
  atomicAdd(&errors->errors[which], error);
  atomicAdd(&errors->squares[which], square);
}

// Block (i, head, part): row i of the part.
__global__ void compare_rows_kernel(const AttentionPart* parts, Tensors t, const bf16* dq, GradientErrors* errors) {
  const AttentionPart part = parts[blockIdx.z];
  const int place = static_cast<int>(blockIdx.x);
  if (place >= part.rows) return;
  __shared__ double shared[kMostThreads];
  const int64_t row = part.row + place;
  const int head = blockIdx.y;
  const int keys = t.end_key(place, part);
  const double dot = out_dot(t, row, head, shared);
  double want = 0.0;
  for (int j = 0; j < keys; ++j) {
    const double2 p = probability(t, row, head, part.key + j, dot, shared);
    want += p.y * number(t.k, t.key(part.key + j, head / t.group)) * t.scale();
  }
  compare(dq, t.query(row, head), want, errors, 0, shared);
}

// Block (j, KV head, part): key j of the part.
__global__ void compare_keys_kernel(const AttentionPart* parts, Tensors t, const bf16* dk, const bf16* dv,
                                    GradientErrors* errors) {
  const AttentionPart part = parts[blockIdx.z];
  const int64_t place = blockIdx.x;
  if (place >= part.keys) return;
  __shared__ double shared[kMostThreads];
  const int64_t key = part.key + place;
  const int kv_head = blockIdx.y;
  double want_k = 0.0, want_v = 0.0;
  for (int i = 0; i < part.rows; ++i) {
    if (place >= t.end_key(i, part)) continue;
    const int64_t row = part.row + i;
    for (int head = kv_head * t.group; head < (kv_head + 1) * t.group; ++head) {
      const double2 p = probability(t, row, head, key, out_dot(t, row, head, shared), shared);
      want_k += p.y * number(t.q, t.query(row, head)) * t.scale();
      want_v += p.x * number(t.dout, t.query(row, head));
    }
  }
  compare(dk, t.key(key, kv_head), want_k, errors, 1, shared);
  compare(dv, t.key(key, kv_head), want_v, errors, 2, shared);
}

Tensors tensors_of(const CheckedParts& parts, const void* q, const void* k, const void* v, const void* out,
                   const void* dout, const float* lse) {
  return {static_cast<const bf16*>(q),
          static_cast<const bf16*>(k),
          static_cast<const bf16*>(v),
          static_cast<const bf16*>(out),
          static_cast<const bf16*>(dout),
          lse,
          static_cast<int>(parts.heads.group),
          static_cast<int>(parts.heads.num_kv_heads),
          parts.form};
}

dim3 rows_grid(const CheckedParts& parts) {
  return {static_cast<uint32_t>(parts.most_rows), static_cast<uint32_t>(parts.heads.group * parts.heads.num_kv_heads),
          static_cast<uint32_t>(parts.num_parts)};
}
dim3 keys_grid(const CheckedParts& parts) {
  return {static_cast<uint32_t>(parts.most_keys), static_cast<uint32_t>(parts.heads.num_kv_heads),
          static_cast<uint32_t>(parts.num_parts)};
}

}  // namespace

cudaError_t draw_checked(const CheckedParts& parts, void* q, void* k, void* v, void* out, void* dout, float* lse,
                         cudaStream_t stream) {
  const auto threads = static_cast<uint32_t>(parts.heads.head_dim);
  const auto draw = [&](void* data, bool is_keys, float scale, uint32_t seed) {
    const dim3 grid = is_keys ? keys_grid(parts) : rows_grid(parts);
    draw_kernel<<<grid, threads, 0, stream>>>(parts.parts, static_cast<bf16*>(data), static_cast<int>(grid.y), is_keys,
                                              scale, seed);
  };
  // Queries of this size give some keys ten times the weight of others.
  draw(q, false, 2.0F, 1);
  draw(k, true, 1.0F, 2);
  draw(v, true, 1.0F, 3);
  draw(dout, false, 1.0F, 4);
  const Tensors t = tensors_of(parts, q, k, v, out, dout, lse);
  forward_kernel<<<rows_grid(parts), threads, 0, stream>>>(parts.parts, t, static_cast<bf16*>(out), lse);
  return cudaGetLastError();
}

cudaError_t compare_checked(const CheckedParts& parts, const PartsOperands& o, GradientErrors* errors,
                            cudaStream_t stream) {
  const auto threads = static_cast<uint32_t>(parts.heads.head_dim);
  const Tensors t = tensors_of(parts, o.q_THK, o.k_nGK, o.v_nGK, o.out_THK, o.dout_THK, o.lse_TH);
  compare_rows_kernel<<<rows_grid(parts), threads, 0, stream>>>(parts.parts, t, static_cast<const bf16*>(o.dq_THK),
                                                                errors);
  compare_keys_kernel<<<keys_grid(parts), threads, 0, stream>>>(parts.parts, t, static_cast<const bf16*>(o.dk_nGK),
                                                                static_cast<const bf16*>(o.dv_nGK), errors);
  return cudaGetLastError();
}

}  // namespace tandem::device::cuda
