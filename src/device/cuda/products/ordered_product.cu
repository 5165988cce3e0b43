// The kernel computes tiles of 64 x 64 outputs by mma.sync, sixteen terms a step.
#include "device/cuda/products/ordered_product.h"

#include "device/cuda/tensor_cores.cuh"
#include "device/cuda/vectors.cuh"

namespace tandem::device::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kTile = 64;            // outputs of a block in each direction
constexpr int kDepth = 16;           // terms of one step
constexpr int kThreads = 128;        // four warps of 32 x 32 outputs
constexpr int kPadded = kDepth + 8;  // elements of a line in shared memory

// Reads lines [first, first + kTile) and terms [k, k + kDepth), with zeros outside.
__device__ void read_tile(const Operand& from, int64_t first, int64_t lines, int64_t k, int64_t depth,
                          bf16 (&to)[kTile][kPadded]) {
  for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
    // Neighbouring threads go along the side that is contiguous.
    const int line = from.depth_stride == 1 ? i / kDepth : i % kTile;
    const int term = from.depth_stride == 1 ? i % kDepth : i / kTile;
    const bool is_inside = first + line < lines && k + term < depth;
    to[line][term] = is_inside ? from.data[(first + line) * from.line_stride + (k + term) * from.depth_stride]
                               : __float2bfloat16_rn(0.0F);
  }
}

template <typename Out>
__global__ __launch_bounds__(kThreads) void ordered_product_kernel(Operand p, Operand q, const Out* added, Out* out,
                                                                   int64_t I, int64_t J, int64_t depth) {
  __shared__ bf16 ps[kTile][kPadded], qs[kTile][kPadded];
  const int64_t i0 = static_cast<int64_t>(blockIdx.y) * kTile, j0 = static_cast<int64_t>(blockIdx.x) * kTile;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int wi = warp / 2 * 32, wj = warp % 2 * 32, quad = lane / 4, pair = lane % 4 * 2;
  float sum[2][4][4] = {};
  for (int64_t k = 0; k < depth; k += kDepth) {
    __syncthreads();
    read_tile(p, i0, I, k, depth, ps);
    read_tile(q, j0, J, k, depth, qs);
    __syncthreads();
    uint32_t a[2][4], b[4][2];
    for (int m = 0; m < 2; ++m) {
      const int line = wi + m * 16 + quad;
      a[m][0] = *reinterpret_cast<const uint32_t*>(&ps[line][pair]);
      a[m][1] = *reinterpret_cast<const uint32_t*>(&ps[line + 8][pair]);
      a[m][2] = *reinterpret_cast<const uint32_t*>(&ps[line][pair + 8]);
      a[m][3] = *reinterpret_cast<const uint32_t*>(&ps[line + 8][pair + 8]);
    }
    for (int n = 0; n < 4; ++n) {
      const int line = wj + n * 8 + quad;
      b[n][0] = *reinterpret_cast<const uint32_t*>(&qs[line][pair]);
      b[n][1] = *reinterpret_cast<const uint32_t*>(&qs[line][pair + 8]);
    }
    for (int m = 0; m < 2; ++m)
      for (int n = 0; n < 4; ++n) multiply_add(sum[m][n], a[m], b[n]);
  }
  for (int m = 0; m < 2; ++m) {
    for (int n = 0; n < 4; ++n) {
      for (int e = 0; e < 4; ++e) {
        const int64_t i = i0 + wi + m * 16 + quad + e / 2 * 8, j = j0 + wj + n * 8 + pair + e % 2;
        if (i >= I || j >= J) continue;
        const float value = sum[m][n][e];
        write(out + i * J + j, added == nullptr ? value : value + widen(added[i * J + j]));
      }
    }
  }
}

// Returns a hash of 32 bits (the finalizer of MurmurHash3).
__device__ uint32_t mixed(uint32_t x) {
  x ^= x >> 16;
  x *= 0x85ebca6bU;
  x ^= x >> 13;
  x *= 0xc2b2ae35U;
  return x ^ (x >> 16);
}

// Returns +-m 2^e, with m in [1, 2) and e in [-range, 0].
__device__ float drawn(uint32_t bits, int range) {
  const float mantissa = 1.0F + static_cast<float>(bits & 0x7fU) / 128.0F;
  const int exponent = -static_cast<int>((bits >> 7) % static_cast<uint32_t>(range + 1));
  return (bits >> 31 != 0 ? -mantissa : mantissa) * exp2f(static_cast<float>(exponent));
}

__global__ void fill_cancelling_kernel(bf16* data, int64_t line_stride, int64_t depth_stride, int64_t lines,
                                       int64_t depth, uint32_t seed, float sign) {
  constexpr int kExponents = 6;
  const int64_t n = lines * depth;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t line = i / depth, k = i % depth, other = depth - 1 - k;
    const bool is_second = k > other;
    const auto term = static_cast<uint32_t>(is_second ? other : k);
    float value = drawn(mixed(seed ^ mixed(static_cast<uint32_t>(line) * 0x9e3779b9U + term)), kExponents);
    if (is_second) value *= sign;
    if (k == other) value = 0.0F;  // it has no partner
    data[line * line_stride + k * depth_stride] = __float2bfloat16_rn(value);
  }
}

template <typename T>
__global__ void fill_small_kernel(T* data, int64_t n, uint32_t seed) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    write(data + i, drawn(mixed(seed ^ mixed(static_cast<uint32_t>(i))), 4) * 0x1p-20F);
  }
}

template <typename Word>
__global__ void count_differences_kernel(const Word* a, const Word* b, int64_t n, unsigned long long* count) {
  unsigned long long different = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    different += a[i] != b[i] ? 1 : 0;
  }
  if (different > 0) atomicAdd(count, different);
}

constexpr unsigned kBlocks = 1056, kWide = 256;

}  // namespace

cudaError_t ordered_product(const Operand& p, const Operand& q, const void* added, void* out, bool is_float32,
                            int64_t I, int64_t J, int64_t depth, cudaStream_t stream) {
  if (I == 0 || J == 0) return cudaSuccess;
  // Rows are the longer side, and a grid's y has 65,535: a call takes that many tiles of them.
  constexpr int64_t kMostRows = int64_t{65535} * kTile;
  const size_t element = is_float32 ? sizeof(float) : sizeof(bf16);
  for (int64_t first = 0; first < I; first += kMostRows) {
    const int64_t rows = I - first < kMostRows ? I - first : kMostRows;
    const dim3 grid(static_cast<unsigned>((J + kTile - 1) / kTile), static_cast<unsigned>((rows + kTile - 1) / kTile));
    const Operand part = {p.data + first * p.line_stride, p.line_stride, p.depth_stride};
    const auto at = [&](auto* base) {
      return base == nullptr ? nullptr : base + first * J * static_cast<int64_t>(element);
    };
    const void* const added_part = at(static_cast<const char*>(added));
    void* const out_part = at(static_cast<char*>(out));
    if (is_float32) {
      ordered_product_kernel<<<grid, kThreads, 0, stream>>>(part, q, static_cast<const float*>(added_part),
                                                            static_cast<float*>(out_part), rows, J, depth);
    } else {
      ordered_product_kernel<<<grid, kThreads, 0, stream>>>(part, q, static_cast<const bf16*>(added_part),
                                                            static_cast<bf16*>(out_part), rows, J, depth);
    }
  }
  return cudaGetLastError();
}

cudaError_t fill_cancelling(bf16* data, int64_t line_stride, int64_t depth_stride, int64_t lines, int64_t depth,
                            uint32_t seed, float sign, cudaStream_t stream) {
  fill_cancelling_kernel<<<kBlocks, kWide, 0, stream>>>(data, line_stride, depth_stride, lines, depth, seed, sign);
  return cudaGetLastError();
}

cudaError_t fill_small(void* data, bool is_float32, int64_t n, uint32_t seed, cudaStream_t stream) {
  if (is_float32) {
    fill_small_kernel<<<kBlocks, kWide, 0, stream>>>(static_cast<float*>(data), n, seed);
  } else {
    fill_small_kernel<<<kBlocks, kWide, 0, stream>>>(static_cast<bf16*>(data), n, seed);
  }
  return cudaGetLastError();
}

cudaError_t count_differences(const void* a, const void* b, bool is_float32, int64_t n, unsigned long long* count,
                              cudaStream_t stream) {
  if (is_float32) {
    count_differences_kernel<<<kBlocks, kWide, 0, stream>>>(static_cast<const uint32_t*>(a),
                                                            static_cast<const uint32_t*>(b), n, count);
  } else {
    count_differences_kernel<<<kBlocks, kWide, 0, stream>>>(static_cast<const uint16_t*>(a),
                                                            static_cast<const uint16_t*>(b), n, count);
  }
  return cudaGetLastError();
}

}  // namespace tandem::device::cuda
