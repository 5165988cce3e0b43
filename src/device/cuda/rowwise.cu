// A thread takes sixteen bytes at a time; sums over a row have the order that vectors.cuh fixes.
#include <algorithm>
#include <type_traits>

#include "device/cuda/launch.cuh"
#include "device/cuda/rowwise.h"
#include "device/cuda/vectors.cuh"

namespace tandem::device::cuda {
namespace {

constexpr int64_t kVector = 8;  // elements of a vector
constexpr int kThreads = 256;

// Returns the threads of a block that works on a row of so many vectors: the width alone decides.
int row_threads(int64_t vectors) {
  return static_cast<int>(std::min<int64_t>(1024, (vectors + kWarp - 1) / kWarp * kWarp));
}

unsigned blocks_for(int64_t items) { return static_cast<unsigned>((items + kThreads - 1) / kThreads); }

__global__ void add_kernel(const bf16* a, const bf16* b, bf16* out, int64_t vectors) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= vectors) return;
  float x[8], y[8];
  unpack(load(a + i * kVector), x);
  unpack(load(b + i * kVector), y);
#pragma unroll
  for (int j = 0; j < 8; ++j) x[j] += y[j];
  store(out + i * kVector, pack(x));
}

__global__ void add_tail_kernel(const bf16* a, const bf16* b, bf16* out, int64_t begin, int64_t n) {
  const int64_t i = begin + threadIdx.x;
  if (i < n) out[i] = __float2bfloat16_rn(__bfloat162float(a[i]) + __bfloat162float(b[i]));
}

// Indices have 32 bits: divisions by 64-bit numbers take as long as the memory.
__global__ void add_bias_kernel(bf16* y, const bf16* bias, uint32_t vectors, uint32_t row_vectors) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= vectors) return;
  float x[8], b[8];
  unpack(load(y + i * kVector), x);
  unpack(load(bias + i % row_vectors * kVector), b);
#pragma unroll
  for (int j = 0; j < 8; ++j) x[j] += b[j];
  store(y + i * kVector, pack(x));
}

// Computes partial[b][:] = the sum of rows b, b + grid, b + 2 grid, ... of dy, in that order. A thread has eight
// columns.
__global__ void column_partials_kernel(const bf16* dy, float* partial, int64_t T, int64_t N) {
  for (int64_t vector = threadIdx.x; vector < N / kVector; vector += blockDim.x) {
    float sum[8] = {};
    for (int64_t row = blockIdx.x; row < T; row += gridDim.x) {
      float x[8];
      unpack(load(dy + row * N + vector * kVector), x);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += x[j];
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) partial[blockIdx.x * N + vector * kVector + j] = sum[j];
  }
}

// Computes to[i] += the sum over blocks of partial[block][first + i]. The blocks are cut into kGroups groups of
// neighbours, whose threads sum them at the same time, block by block; then the groups are summed in their order. A
// thread has all of its numbers on the way at once: otherwise it would wait for memory, one number after the other.
constexpr int kSumColumns = 32, kGroups = 16;
__global__ void add_partials_kernel(const float* partial, float* to, int64_t blocks, int64_t stride, int64_t first,
                                    int64_t width) {
  constexpr int kMostOfGroup = static_cast<int>((num_partials(1 << 20) + kGroups - 1) / kGroups);
  __shared__ float sums[kGroups][kSumColumns];
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kSumColumns + threadIdx.x;
  const int64_t of_group = (blocks + kGroups - 1) / kGroups, begin = threadIdx.y * of_group;
  const int64_t end = begin + of_group < blocks ? begin + of_group : blocks;
  float part[kMostOfGroup];
#pragma unroll
  for (int b = 0; b < kMostOfGroup; ++b) {
    part[b] = i < width && begin + b < end ? partial[(begin + b) * stride + first + i] : 0.0F;
  }
  float sum = 0.0F;
#pragma unroll
  for (int b = 0; b < kMostOfGroup; ++b) sum += part[b];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || i >= width) return;
  for (int group = 1; group < kGroups; ++group) sum += sums[group][threadIdx.x];
  to[i] += sum;
}

void add_partials(const float* partial, float* to, int64_t blocks, int64_t stride, int64_t first, int64_t width,
                  cudaStream_t stream) {
  add_partials_kernel<<<static_cast<unsigned>((width + kSumColumns - 1) / kSumColumns), dim3(kSumColumns, kGroups), 0,
                        stream>>>(partial, to, blocks, stride, first, width);
}

// Each row has one block; a thread has at most kMost vectors of it.
template <int kMost>
__global__ void rms_norm_kernel(const bf16* x, const bf16* w, bf16* y, int64_t E, float eps) {
  __shared__ float shared[kWarp];
  float v[kMost][8], weight[kMost][8];
  const auto for_each_vector = [E](auto&& work) {
#pragma unroll
    for (int m = 0; m < kMost; ++m) {
      const int64_t i = (threadIdx.x + m * static_cast<int64_t>(blockDim.x)) * kVector;
      if (i < E) work(m, i);
    }
  };
  for_each_vector([&](int m, int64_t i) { unpack(load(w + i), weight[m]); });
  let_next_begin();
  wait_for_inputs();
  float sum = 0.0F;
  for_each_vector([&](int m, int64_t i) {
    unpack(load(x + blockIdx.x * E + i), v[m]);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += v[m][j] * v[m][j];
  });
  const float inverse = rsqrtf(block_sum(sum, shared) / static_cast<float>(E) + eps);
  for_each_vector([&](int m, int64_t i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) v[m][j] = v[m][j] * inverse * weight[m][j];
    store(y + blockIdx.x * E + i, pack(v[m]));
  });
}

// Block b has rows b, b + grid, ... With unit = x inverse: dx = (dy w - unit mean(dy w unit)) inverse, dw = dy unit.
// A thread has at most kMost vectors of a row.
template <int kMost>
__global__ void rms_norm_backward_kernel(const bf16* dy, const bf16* x, const bf16* w, bf16* dx, float* partial,
                                         int64_t T, int64_t E, float eps) {
  __shared__ float squares[kWarp], products[kWarp];
  float dw[kMost][8] = {};
  for (int64_t row = blockIdx.x; row < T; row += gridDim.x) {
    float unit[kMost][8], dunit[kMost][8];
    float square = 0.0F;
#pragma unroll
    for (int m = 0; m < kMost; ++m) {
      const int64_t i = (threadIdx.x + m * static_cast<int64_t>(blockDim.x)) * kVector;
      if (i >= E) continue;
      unpack(load(x + row * E + i), unit[m]);
#pragma unroll
      for (int j = 0; j < 8; ++j) square += unit[m][j] * unit[m][j];
    }
    const float inverse = rsqrtf(block_sum(square, squares) / static_cast<float>(E) + eps);
    float product = 0.0F;
#pragma unroll
    for (int m = 0; m < kMost; ++m) {
      const int64_t i = (threadIdx.x + m * static_cast<int64_t>(blockDim.x)) * kVector;
      if (i >= E) continue;
      float d[8], weight[8];
      unpack(load(dy + row * E + i), d);
      unpack(load(w + i), weight);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        unit[m][j] *= inverse;
        dw[m][j] += d[j] * unit[m][j];
        dunit[m][j] = d[j] * weight[j];
        product += dunit[m][j] * unit[m][j];
      }
    }
    const float along = block_sum(product, products) / static_cast<float>(E);
#pragma unroll
    for (int m = 0; m < kMost; ++m) {
      const int64_t i = (threadIdx.x + m * static_cast<int64_t>(blockDim.x)) * kVector;
      if (i >= E) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j) dunit[m][j] = (dunit[m][j] - unit[m][j] * along) * inverse;
      store(dx + row * E + i, pack(dunit[m]));
    }
  }
#pragma unroll
  for (int m = 0; m < kMost; ++m) {
    const int64_t i = (threadIdx.x + m * static_cast<int64_t>(blockDim.x)) * kVector;
    if (i >= E) continue;
#pragma unroll
    for (int j = 0; j < 8; ++j) partial[blockIdx.x * E + i + j] = dw[m][j];
  }
}

__global__ void silu_mul_kernel(const bf16* gate_up, bf16* out, uint32_t vectors, uint32_t row_vectors) {
  let_next_begin();
  wait_for_inputs();
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= vectors) return;
  const int64_t row = i / row_vectors, column = i % row_vectors;
  const bf16* at = gate_up + (2 * row * row_vectors + column) * kVector;
  float gate[8], up[8];
  unpack(load(at), gate);
  unpack(load(at + row_vectors * kVector), up);
#pragma unroll
  for (int j = 0; j < 8; ++j) gate[j] = sigmoid(gate[j]) * gate[j] * up[j];
  store(out + i * kVector, pack(gate));
}

__global__ void silu_mul_backward_kernel(bf16* dout, const bf16* gate_up, bf16* dgate_up, uint32_t vectors,
                                         uint32_t row_vectors) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= vectors) return;
  const int64_t row = i / row_vectors, column = i % row_vectors;
  const int64_t at = (2 * row * row_vectors + column) * kVector;
  float gate[8], up[8], d[8], dgate[8], dup[8];
  unpack(load(gate_up + at), gate);
  unpack(load(gate_up + at + row_vectors * kVector), up);
  unpack(load(dout + i * kVector), d);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float s = sigmoid(gate[j]);
    dup[j] = d[j] * gate[j] * s;
    dgate[j] = ((1.0F - s) * gate[j] + 1.0F) * s * up[j] * d[j];
    d[j] = s * gate[j] * up[j];
  }
  store(dout + i * kVector, pack(d));
  store(dgate_up + at, pack(dgate));
  store(dgate_up + at + row_vectors * kVector, pack(dup));
}

// The elements of a head that a lane of a warp has: pairs (i, i + K/2) that turn together, kPairs neighbours of each
// half. A head of K numbers has K/2 pairs, at most 32 kPairs and a multiple of 4; lanes past them hold zeros.
template <int kPairs>
struct HeadLane {
  float low[kPairs], high[kPairs];

  __device__ static bool is_of(int K, int lane) { return lane * kPairs < K / 2; }
  __device__ void read(const bf16* head, int K, int lane) {
    if (is_of(K, lane)) {
      read_half(head + kPairs * lane, low);
      read_half(head + K / 2 + kPairs * lane, high);
    } else {
#pragma unroll
      for (int p = 0; p < kPairs; ++p) low[p] = high[p] = 0.0F;
    }
  }
  __device__ void write(bf16* head, int K, int lane) const {
    if (!is_of(K, lane)) return;
    write_half(head + kPairs * lane, low);
    write_half(head + K / 2 + kPairs * lane, high);
  }
  __device__ float sum_of_products(const HeadLane& other) const {
    float sum = 0.0F;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) sum += low[p] * other.low[p] + high[p] * other.high[p];
    return warp_sum(sum);
  }
  __device__ void scale(float by) {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) low[p] *= by, high[p] *= by;
  }
  __device__ void multiply(const HeadLane& by) {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) low[p] *= by.low[p], high[p] *= by.high[p];
  }
  __device__ void add_product(const HeadLane& a, const HeadLane& b) {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) low[p] += a.low[p] * b.low[p], high[p] += a.high[p] * b.high[p];
  }
  // Computes rotate_half by the angles of cos and sin; sign -1 turns back.
  __device__ void rotate(const float2 (&turn)[kPairs], float sign) {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const float sin = turn[p].y * sign, a = low[p], b = high[p];
      low[p] = a * turn[p].x - b * sin;
      high[p] = b * turn[p].x + a * sin;
    }
  }

 private:
  struct alignas(2 * kPairs) Half {
    bf16 values[kPairs];
  };
  __device__ static void read_half(const bf16* from, float (&to)[kPairs]) {
    const Half half = *reinterpret_cast<const Half*>(from);
#pragma unroll
    for (int p = 0; p < kPairs; ++p) to[p] = __bfloat162float(half.values[p]);
  }
  __device__ static void write_half(bf16* to, const float (&from)[kPairs]) {
    Half half;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) half.values[p] = __float2bfloat16_rn(from[p]);
    *reinterpret_cast<Half*>(to) = half;
  }
};

// Computes cos and sin of the lane's pairs at a position, through shared memory [32 kPairs]: a row computes each once.
template <int kPairs>
__device__ void read_turns(const Frequencies& frequencies, int K, int position, float2* shared,
                           float2 (&turn)[kPairs]) {
  if (static_cast<int>(threadIdx.x) < K / 2) {
    float2 t;
    sincosf(static_cast<float>(position) * frequencies.values[threadIdx.x], &t.y, &t.x);
    shared[threadIdx.x] = t;
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    turn[p] = HeadLane<kPairs>::is_of(K, lane) ? shared[lane * kPairs + p] : float2{};
  }
}

template <int kPairs>
__device__ float inverse_norm(const HeadLane<kPairs>& x, int K, float eps) {
  return rsqrtf(x.sum_of_products(x) / static_cast<float>(K) + eps);
}

constexpr int kQkvThreads = 256, kHeadsAtOnce = kQkvThreads / kWarp;

// A head has as many elements as lanes have room for, or, if kPadded, head_dim of them.
template <int kPairs, bool kPadded>
__device__ int size_of_head(int head_dim) {
  return kPadded ? head_dim : 2 * kWarp * kPairs;
}

// Each warp takes heads in turns, and a row has as many blocks as the grid has.
template <int kPairs, bool kPadded, bool kNorm>
__global__ __launch_bounds__(kQkvThreads) void qk_norm_rope_kernel(const bf16* qkv, const bf16* q_norm,
                                                                   const bf16* k_norm, const int32_t* positions,
                                                                   const __grid_constant__ Frequencies frequencies,
                                                                   bf16* q, bf16* k, bf16* v, int H, int G,
                                                                   int head_dim, float eps) {
  __shared__ float2 turns[kWarp * kPairs];
  const int K = size_of_head<kPairs, kPadded>(head_dim);
  const int64_t row = blockIdx.x;
  const int lane = threadIdx.x % kWarp, heads = H + 2 * G;
  let_next_begin();
  float2 turn[kPairs];
  read_turns<kPairs>(frequencies, K, positions[row], turns, turn);
  wait_for_inputs();
  for (int head = blockIdx.y * kHeadsAtOnce + threadIdx.x / kWarp; head < heads; head += gridDim.y * kHeadsAtOnce) {
    HeadLane<kPairs> x;
    x.read(qkv + (row * heads + head) * K, K, lane);
    if (head >= H + G) {
      x.write(v + (row * G + head - H - G) * K, K, lane);
      continue;
    }
    const bool is_q = head < H;
    if constexpr (kNorm) {
      HeadLane<kPairs> weight;
      weight.read(is_q ? q_norm : k_norm, K, lane);
      x.scale(inverse_norm(x, K, eps));
      x.multiply(weight);
    }
    x.rotate(turn, 1.0F);
    x.write(is_q ? q + (row * H + head) * K : k + (row * G + head - H) * K, K, lane);
  }
}

template <int kPairs, bool kPadded, bool kNorm>
__global__ __launch_bounds__(kQkvThreads) void qk_norm_rope_backward_kernel(
    const bf16* dq, const bf16* dk, const bf16* dv, const bf16* qkv, const bf16* q_norm, const bf16* k_norm,
    const int32_t* positions, const __grid_constant__ Frequencies frequencies, bf16* dqkv, float* partial, int64_t T,
    int H, int G, int head_dim, float eps) {
  const int K = size_of_head<kPairs, kPadded>(head_dim);
  constexpr int kWarps = kQkvThreads / kWarp, kHalf = kWarp * kPairs;
  __shared__ float2 turns[kHalf];
  __shared__ float sums[2][kWarps][2 * kHalf];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, heads = H + 2 * G;
  HeadLane<kPairs> dweight[2] = {};  // gradients of q's norm and of k's
  for (int64_t row = blockIdx.x; row < T; row += gridDim.x) {
    float2 turn[kPairs];
    __syncthreads();  // the previous row has read its cos and sin
    read_turns<kPairs>(frequencies, K, positions[row], turns, turn);
    for (int head = warp; head < heads; head += kWarps) {
      HeadLane<kPairs> d;
      bf16* const to = dqkv + (row * heads + head) * K;
      if (head >= H + G) {
        d.read(dv + (row * G + head - H - G) * K, K, lane);
        d.write(to, K, lane);
        continue;
      }
      const bool is_q = head < H;
      d.read(is_q ? dq + (row * H + head) * K : dk + (row * G + head - H) * K, K, lane);
      d.rotate(turn, -1.0F);
      if constexpr (kNorm) {
        HeadLane<kPairs> unit, weight;
        unit.read(qkv + (row * heads + head) * K, K, lane);
        weight.read(is_q ? q_norm : k_norm, K, lane);
        const float inverse = inverse_norm(unit, K, eps);
        unit.scale(inverse);
        if (is_q) {
          dweight[0].add_product(d, unit);
        } else {
          dweight[1].add_product(d, unit);
        }
        d.multiply(weight);
        const float along = d.sum_of_products(unit) / static_cast<float>(K);
#pragma unroll
        for (int p = 0; p < kPairs; ++p) {
          d.low[p] = (d.low[p] - unit.low[p] * along) * inverse;
          d.high[p] = (d.high[p] - unit.high[p] * along) * inverse;
        }
      }
      d.write(to, K, lane);
    }
  }
  if constexpr (kNorm) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        sums[which][warp][lane * kPairs + p] = dweight[which].low[p];
        sums[which][warp][kHalf + lane * kPairs + p] = dweight[which].high[p];
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * K; i += kQkvThreads) {
      const int which = i / K, of_head = i % K, at = of_head < K / 2 ? of_head : kHalf + of_head - K / 2;
      float sum = 0.0F;
      for (int w = 0; w < kWarps; ++w) sum += sums[which][w][at];
      partial[static_cast<int64_t>(blockIdx.x) * 2 * K + i] = sum;
    }
  }
}

template <int kPairs, bool kPadded>
cudaError_t qk_norm_rope_of(const bf16* qkv, const bf16* q_norm, const bf16* k_norm, const int32_t* positions, bf16* q,
                            bf16* k, bf16* v, int64_t T, const QkvLayout& l, cudaStream_t stream) {
  const auto kernel =
      q_norm != nullptr ? qk_norm_rope_kernel<kPairs, kPadded, true> : qk_norm_rope_kernel<kPairs, kPadded, false>;
  constexpr int64_t kFewRows = 32;
  // If rows are few, a row has so many blocks that each warp computes one head. If they are many, it has one block,
  // which computes the row's angles once.
  const int64_t heads = l.num_heads + 2 * l.num_kv_heads;
  const dim3 grid(static_cast<unsigned>(T),
                  T <= kFewRows ? static_cast<unsigned>((heads + kHeadsAtOnce - 1) / kHeadsAtOnce) : 1);
  return launch_dependent(kernel, T, grid, kQkvThreads, 0, stream, qkv, q_norm, k_norm, positions, l.frequencies, q, k,
                          v, static_cast<int>(l.num_heads), static_cast<int>(l.num_kv_heads),
                          static_cast<int>(l.head_dim), static_cast<float>(l.eps));
}

template <int kPairs, bool kPadded>
cudaError_t qk_norm_rope_backward_of(const bf16* dq, const bf16* dk, const bf16* dv, const bf16* qkv,
                                     const bf16* q_norm, const bf16* k_norm, const int32_t* positions, bf16* dqkv,
                                     float* dq_norm, float* dk_norm, float* scratch, int64_t T, const QkvLayout& l,
                                     cudaStream_t stream) {
  const auto kernel = q_norm != nullptr ? qk_norm_rope_backward_kernel<kPairs, kPadded, true>
                                        : qk_norm_rope_backward_kernel<kPairs, kPadded, false>;
  const int64_t blocks = num_partials(T), K = l.head_dim;
  kernel<<<static_cast<unsigned>(blocks), kQkvThreads, 0, stream>>>(
      dq, dk, dv, qkv, q_norm, k_norm, positions, l.frequencies, dqkv, scratch, T, static_cast<int>(l.num_heads),
      static_cast<int>(l.num_kv_heads), static_cast<int>(K), static_cast<float>(l.eps));
  if (dq_norm != nullptr) {
    add_partials(scratch, dq_norm, blocks, 2 * K, 0, K, stream);
    add_partials(scratch, dk_norm, blocks, 2 * K, K, K, stream);
  }
  return cudaGetLastError();
}

// Calls launch(pairs, is_padded), which are std::integral_constants: the pairs of a lane, and whether there is room for
// more, for heads of this size.
template <typename Launch>
cudaError_t launch_with_pairs(int64_t head_dim, const Launch& launch) {
  if (!supports_head_dim(head_dim)) return cudaErrorInvalidValue;
  const auto launch_with = [&](auto pairs) {
    return head_dim == head_width(head_dim) ? launch(pairs, std::false_type()) : launch(pairs, std::true_type());
  };
  switch (head_width(head_dim)) {
    case 64: return launch_with(std::integral_constant<int, 1>());
    case 128: return launch_with(std::integral_constant<int, 2>());
    default: return launch_with(std::integral_constant<int, 4>());
  }
}

}  // namespace

cudaError_t add(const bf16* a, const bf16* b, bf16* out, int64_t n, cudaStream_t stream) {
  const int64_t vectors = n / kVector;
  if (vectors > 0) add_kernel<<<blocks_for(vectors), kThreads, 0, stream>>>(a, b, out, vectors);
  if (n % kVector > 0) add_tail_kernel<<<1, kVector, 0, stream>>>(a, b, out, vectors * kVector, n);
  return cudaGetLastError();
}

cudaError_t add_bias(bf16* y, const bf16* bias, int64_t T, int64_t N, cudaStream_t stream) {
  const int64_t vectors = T * N / kVector;
  if (vectors > 0)
    add_bias_kernel<<<blocks_for(vectors), kThreads, 0, stream>>>(y, bias, static_cast<uint32_t>(vectors),
                                                                  static_cast<uint32_t>(N / kVector));
  return cudaGetLastError();
}

cudaError_t add_bias_backward(const bf16* dy, float* dbias, float* scratch, int64_t T, int64_t N, cudaStream_t stream) {
  if (T == 0) return cudaSuccess;
  const int64_t blocks = num_partials(T);
  column_partials_kernel<<<static_cast<unsigned>(blocks), row_threads(N / kVector), 0, stream>>>(dy, scratch, T, N);
  add_partials(scratch, dbias, blocks, N, 0, N, stream);
  return cudaGetLastError();
}

namespace {

// Calls launch(most, threads) for rows of so many vectors, of which a thread has at most `most`, a
// std::integral_constant.
template <typename Launch>
cudaError_t launch_with_vectors(int64_t vectors, const Launch& launch) {
  if (vectors <= 512) return launch(std::integral_constant<int, 1>(), row_threads(vectors));
  if (vectors <= 1024) return launch(std::integral_constant<int, 2>(), row_threads((vectors + 1) / 2));
  if (vectors <= 2048) return launch(std::integral_constant<int, 4>(), row_threads((vectors + 3) / 4));
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t rms_norm(const bf16* x, const bf16* w, bf16* y, int64_t T, int64_t E, double eps, cudaStream_t stream) {
  if (T == 0) return cudaSuccess;
  return launch_with_vectors(E / kVector, [&](auto most, int threads) {
    return launch_dependent(rms_norm_kernel<decltype(most)::value>, T, static_cast<unsigned>(T), threads, 0, stream, x,
                            w, y, E, static_cast<float>(eps));
  });
}

cudaError_t rms_norm_backward(const bf16* dy, const bf16* x, const bf16* w, bf16* dx, float* dw, float* scratch,
                              int64_t T, int64_t E, double eps, cudaStream_t stream) {
  if (T == 0) return cudaSuccess;
  const int64_t blocks = num_partials(T);
  const cudaError_t status = launch_with_vectors(E / kVector, [&](auto most, int threads) {
    rms_norm_backward_kernel<decltype(most)::value>
        <<<static_cast<unsigned>(blocks), threads, 0, stream>>>(dy, x, w, dx, scratch, T, E, static_cast<float>(eps));
    return cudaGetLastError();
  });
  if (status != cudaSuccess) return status;
  if (dw != nullptr) add_partials(scratch, dw, blocks, E, 0, E, stream);
  return cudaGetLastError();
}

cudaError_t silu_mul(const bf16* gate_up, bf16* out, int64_t T, int64_t F, cudaStream_t stream) {
  const int64_t vectors = T * F / kVector;
  if (vectors == 0) return cudaSuccess;
  return launch_dependent(silu_mul_kernel, T, blocks_for(vectors), kThreads, 0, stream, gate_up, out, vectors,
                          F / kVector);
}

cudaError_t silu_mul_backward(bf16* dout, const bf16* gate_up, bf16* dgate_up, int64_t T, int64_t F,
                              cudaStream_t stream) {
  const int64_t vectors = T * F / kVector;
  if (vectors == 0) return cudaSuccess;
  silu_mul_backward_kernel<<<blocks_for(vectors), kThreads, 0, stream>>>(
      dout, gate_up, dgate_up, static_cast<uint32_t>(vectors), static_cast<uint32_t>(F / kVector));
  return cudaGetLastError();
}

cudaError_t qk_norm_rope(const bf16* qkv, const bf16* q_norm, const bf16* k_norm, const int32_t* positions, bf16* q,
                         bf16* k, bf16* v, int64_t T, const QkvLayout& layout, cudaStream_t stream) {
  if (T == 0) return cudaSuccess;
  return launch_with_pairs(layout.head_dim, [&](auto pairs, auto is_padded) {
    return qk_norm_rope_of<decltype(pairs)::value, decltype(is_padded)::value>(qkv, q_norm, k_norm, positions, q, k, v,
                                                                               T, layout, stream);
  });
}

cudaError_t qk_norm_rope_backward(const bf16* dq, const bf16* dk, const bf16* dv, const bf16* qkv, const bf16* q_norm,
                                  const bf16* k_norm, const int32_t* positions, bf16* dqkv, float* dq_norm,
                                  float* dk_norm, float* scratch, int64_t T, const QkvLayout& layout,
                                  cudaStream_t stream) {
  if (T == 0) return cudaSuccess;
  return launch_with_pairs(layout.head_dim, [&](auto pairs, auto is_padded) {
    return qk_norm_rope_backward_of<decltype(pairs)::value, decltype(is_padded)::value>(
        dq, dk, dv, qkv, q_norm, k_norm, positions, dqkv, dq_norm, dk_norm, scratch, T, layout, stream);
  });
}

}  // namespace tandem::device::cuda
