// embedding.h has the contract.
#include "device/cuda/embedding.h"

#include <algorithm>

namespace tandem::device::cuda {
namespace {

// Copy is the type in which one thread takes bytes of a row.
template <typename Copy>
__global__ void copy_rows(const Copy* table, TableRows rows, const int32_t* ids, int width, Copy* out) {
  const int64_t token = blockIdx.x;
  const int64_t row = max(ids[token], 0) - rows.first;
  const bool is_here = row >= 0 && row < rows.count;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x))
    out[token * width + i] = is_here ? table[row * width + i] : Copy{};
}

// Holds an id and its place in the batch.
struct Place {
  int32_t id, token;
};

// Computes the place to which the stable sort by id puts each token: after all that have a smaller id, or the same and
// come earlier.
constexpr int kSortThreads = 128;
constexpr int kSortLanes = 4;  // lanes that share the comparisons of a token
__global__ void __launch_bounds__(kSortThreads) sort_by_id(const int32_t* ids, int num_tokens, Place* sorted) {
  constexpr int kTokens = kSortThreads / kSortLanes;
  constexpr int kTile = 1024;
  __shared__ int4 tile[kTile / 4];
  const int token = static_cast<int>(blockIdx.x) * kTokens + static_cast<int>(threadIdx.x) / kSortLanes;
  const int share = static_cast<int>(threadIdx.x) % kSortLanes;
  const int id = token < num_tokens ? ids[token] : 0;
  int place = 0;
  for (int begin = 0; begin < num_tokens; begin += kTile) {
    __syncthreads();
    auto* flat = reinterpret_cast<int32_t*>(tile);
    for (int i = static_cast<int>(threadIdx.x); i < kTile; i += kSortThreads)
      flat[i] = begin + i < num_tokens ? ids[begin + i] : INT32_MAX;
    __syncthreads();
    const int blocks_first = static_cast<int>(blockIdx.x) * kTokens;
    if (begin + kTile <= blocks_first || begin >= blocks_first + kTokens) {
      // The whole tile is earlier, or the whole tile later, than all tokens of this block.
      const int bound = begin < blocks_first ? id + 1 : id;
#pragma unroll 8
      for (int i = share; i < kTile / 4; i += kSortLanes) {
        const int4 four = tile[i];
        place += (four.x < bound) + (four.y < bound) + (four.z < bound) + (four.w < bound);
      }
    } else {
      for (int i = share; i < kTile; i += kSortLanes) place += flat[i] < id || (flat[i] == id && begin + i < token);
    }
  }
#pragma unroll
  for (int offset = kSortLanes / 2; offset > 0; offset /= 2) place += __shfl_xor_sync(0xffffffffU, place, offset);
  if (token < num_tokens && share == 0) sorted[place] = {id, token};
}

__device__ float4 load_four(const float* p) { return *reinterpret_cast<const float4*>(p); }
__device__ float4 load_four(const __nv_bfloat16* p) {
  const uint2 packed = *reinterpret_cast<const uint2*>(p);
  const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&packed);
  const float2 low = __bfloat1622float2(pairs[0]), high = __bfloat1622float2(pairs[1]);
  return {low.x, low.y, high.x, high.y};
}
__device__ void add(float4& sum, float4 x) {
  sum.x += x.x;
  sum.y += x.y;
  sum.z += x.z;
  sum.w += x.w;
}

// A block adds the rows of one id, for a part of the width: it belongs to the first of them.
constexpr int kAddThreads = 128;
template <typename Element, bool kFours>
__global__ void __launch_bounds__(kAddThreads)
    add_rows(const Element* dy, TableRows rows, const Place* sorted, int num_tokens, int width, float* dtable) {
  const int first = static_cast<int>(blockIdx.x);
  const int id = sorted[first].id;
  if (id < rows.first || id >= rows.first + rows.count) return;
  if (first > 0 && sorted[first - 1].id == id) return;
  const int column = (static_cast<int>(blockIdx.y) * kAddThreads + static_cast<int>(threadIdx.x)) * (kFours ? 4 : 1);
  if (column >= width) return;
  float* target = dtable + (id - rows.first) * width + column;
  constexpr int kAhead = 8;  // rows being loaded: a long run of one id is bound by their latency
  if constexpr (kFours) {
    float4 sum = load_four(target);
    for (int at = first; at < num_tokens && sorted[at].id == id; at += kAhead) {
      float4 ahead[kAhead];
      bool is_of_id[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const Place place = at + i < num_tokens ? sorted[at + i] : Place{-1, 0};
        is_of_id[i] = place.id == id;
        if (is_of_id[i]) ahead[i] = load_four(dy + static_cast<int64_t>(place.token) * width + column);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (is_of_id[i]) add(sum, ahead[i]);
      }
    }
    *reinterpret_cast<float4*>(target) = sum;
  } else {
    float sum = *target;
    for (int at = first; at < num_tokens && sorted[at].id == id; ++at)
      sum += static_cast<float>(dy[static_cast<int64_t>(sorted[at].token) * width + column]);
    *target = sum;
  }
}

__global__ void replace_drawn(int32_t* ids, int64_t num_tokens, const int32_t* drawn) {
  const int64_t t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (t < num_tokens && ids[t] < 0) ids[t] = drawn[-1 - ids[t]];
}

constexpr unsigned blocks_of(int64_t n, int64_t per_block) {
  return static_cast<unsigned>((n + per_block - 1) / per_block);
}

}  // namespace

template <typename Element>
cudaError_t embedding(const Element* table, TableRows rows, const int32_t* ids, int64_t num_tokens, int64_t width,
                      Element* out, cudaStream_t stream) {
  if (num_tokens == 0 || width == 0) return cudaSuccess;
  const auto tokens = static_cast<unsigned>(num_tokens);
  constexpr int64_t kPerCopy = 16 / sizeof(Element);
  const auto threads = [](int64_t copies) {
    return static_cast<unsigned>(std::min<int64_t>(512, (copies + 31) / 32 * 32));
  };
  if (width % kPerCopy == 0) {
    const int64_t copies = width / kPerCopy;
    copy_rows<<<tokens, threads(copies), 0, stream>>>(reinterpret_cast<const uint4*>(table), rows, ids,
                                                      static_cast<int>(copies), reinterpret_cast<uint4*>(out));
  } else {
    copy_rows<<<tokens, threads(width), 0, stream>>>(table, rows, ids, static_cast<int>(width), out);
  }
  return cudaGetLastError();
}
template cudaError_t embedding(const float*, TableRows, const int32_t*, int64_t, int64_t, float*, cudaStream_t);
template cudaError_t embedding(const __nv_bfloat16*, TableRows, const int32_t*, int64_t, int64_t, __nv_bfloat16*,
                               cudaStream_t);

template <typename Element>
cudaError_t embedding_backward(const Element* dy, TableRows rows, const int32_t* ids, int64_t num_tokens, int64_t width,
                               float* dtable, void* scratch, cudaStream_t stream) {
  if (num_tokens == 0 || width == 0) return cudaSuccess;
  static_assert(sizeof(Place) == embedding_backward_scratch(1));
  auto* sorted = static_cast<Place*>(scratch);
  const int tokens = static_cast<int>(num_tokens);
  sort_by_id<<<blocks_of(num_tokens, kSortThreads / kSortLanes), kSortThreads, 0, stream>>>(ids, tokens, sorted);
  const bool fours = width % 4 == 0;
  const dim3 grid(static_cast<unsigned>(num_tokens), blocks_of(width, kAddThreads * (fours ? 4 : 1)));
  const auto kernel = fours ? add_rows<Element, true> : add_rows<Element, false>;
  kernel<<<grid, kAddThreads, 0, stream>>>(dy, rows, sorted, tokens, static_cast<int>(width), dtable);
  return cudaGetLastError();
}
template cudaError_t embedding_backward(const float*, TableRows, const int32_t*, int64_t, int64_t, float*, void*,
                                        cudaStream_t);
template cudaError_t embedding_backward(const __nv_bfloat16*, TableRows, const int32_t*, int64_t, int64_t, float*,
                                        void*, cudaStream_t);

cudaError_t take_drawn(int32_t* ids, int64_t num_tokens, const int32_t* drawn, cudaStream_t stream) {
  if (num_tokens == 0) return cudaSuccess;
  replace_drawn<<<blocks_of(num_tokens, 256), 256, 0, stream>>>(ids, num_tokens, drawn);
  return cudaGetLastError();
}

}  // namespace tandem::device::cuda
