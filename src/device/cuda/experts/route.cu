// A warp has a row of logits. Orders are compared by integers and by logits, and only the denominator is a sum.
#include "device/cuda/experts/route.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "device/cuda/launch.cuh"
#include "device/cuda/scratch.h"
#include "device/cuda/vectors.cuh"

namespace tandem::device::cuda {
namespace {

constexpr int kRowWarps = 4;  // rows of a block

// Returns a number that is larger where x is; a NaN is larger or smaller than all numbers, by its sign.
__device__ uint32_t rank_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
}
__device__ float of_rank(uint32_t rank) {
  return __uint_as_float(rank >> 31 != 0 ? rank & 0x7fffffffU : ~rank);
}

// A lane's logits: those of experts lane, lane + 32, ... Experts past the last have -inf.
template <int kEach>
struct Logits {
  float values[kEach];

  __device__ void read(const float* row, int num_experts, int lane) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int expert = i * kWarp + lane;
      values[i] = expert < num_experts ? row[expert] + 0.0F : -INFINITY;  // adding 0 makes 0 of -0
    }
  }
  // Whether all logits of the row are finite.
  __device__ bool are_finite(int num_experts, int lane) const {
    bool finite = true;
#pragma unroll
    for (int i = 0; i < kEach; ++i) finite = finite && (i * kWarp + lane >= num_experts || isfinite(values[i]));
    return __all_sync(kAllLanes, finite) != 0;
  }
  __device__ float largest() const {
    uint32_t rank = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) rank = max(rank, rank_of(values[i]));
    return of_rank(__reduce_max_sync(kAllLanes, rank));
  }
  // Returns the sum of exp(logit - largest) over all experts, whose order X alone decides.
  __device__ float sum_of_exponentials(float largest) const {
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum += expf(values[i] - largest);
    return warp_sum(sum);
  }
};

// Chooses the experts of one token. One warp.
template <int kEach>
__device__ void route_token(const float* logits, int token, int num_experts, int num_chosen, bool normalises,
                            int32_t* ids, float* weights) {
  const int lane = threadIdx.x % kWarp;
  Logits<kEach> row;
  row.read(logits + static_cast<int64_t>(token) * num_experts, num_experts, lane);
  const bool finite = row.are_finite(num_experts, lane);

  // Lane c has the c-th largest, of equal ones that with the lower id first.
  int my_id = num_experts;
  float my_logit = 0.0F;
  uint32_t taken = 0;  // a bit for each of the lane's experts
  for (int c = 0; c < num_chosen; ++c) {
    uint32_t best = 0;
    int best_id = num_experts;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int expert = i * kWarp + lane;
      if (expert >= num_experts || (taken >> i & 1) != 0) continue;
      const uint32_t rank = rank_of(row.values[i]);
      if (rank > best || best_id == num_experts) {
        best = rank;
        best_id = expert;
      }
    }
    const uint32_t rank = __reduce_max_sync(kAllLanes, best);
    const int id = __reduce_min_sync(kAllLanes, best == rank ? best_id : num_experts);
    if (id % kWarp == lane) taken |= 1U << id / kWarp;
    if (lane == c) {
      my_id = id;
      my_logit = of_rank(rank);
    }
  }

  // Lane 0 has the largest logit of all.
  const float largest = __shfl_sync(kAllLanes, my_logit, 0);
  const float exponential = expf(my_logit - largest);
  int position = 0;  // of the lane's expert by rising id
  for (int c = 0; c < num_chosen; ++c) position += __shfl_sync(kAllLanes, my_id, c) < my_id ? 1 : 0;
  float sum = 0.0F;
  if (normalises) {
    for (int c = 0; c < num_chosen; ++c) {
      const unsigned holder = __ballot_sync(kAllLanes, lane < num_chosen && position == c);
      sum += __shfl_sync(kAllLanes, exponential, __ffs(static_cast<int>(holder)) - 1);
    }
  } else {
    sum = row.sum_of_exponentials(largest);
  }
  if (lane < num_chosen) {
    const int64_t to = static_cast<int64_t>(token) * num_chosen + position;
    ids[to] = my_id;
    weights[to] = finite ? __fdiv_rn(exponential, sum) : NAN;
  }
}

template <int kEach>
__global__ __launch_bounds__(kRowWarps * kWarp) void route_kernel(const float* logits, int T, int num_experts,
                                                                  int num_chosen, bool normalises, int32_t* ids,
                                                                  float* weights) {
  wait_for_inputs();
  let_next_begin();
  const int token = blockIdx.x * kRowWarps + threadIdx.x / kWarp;
  if (token < T) route_token<kEach>(logits, token, num_experts, num_chosen, normalises, ids, weights);
}

// With the weights w of the chosen experts and their gradients g, and s = sum of w g by rising id: the logit of a
// chosen expert has w g, less its probability times s. Where the weights are normalised, they are the probabilities.
template <int kEach, typename Gradient>
__global__ __launch_bounds__(kRowWarps * kWarp) void route_backward_kernel(const float* dweights, const float* logits,
                                                                           const int32_t* ids, const float* weights,
                                                                           int T, int num_experts, int num_chosen,
                                                                           bool normalises, Gradient* dlogits) {
  const int token = blockIdx.x * kRowWarps + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (token >= T) return;
  const int64_t first = static_cast<int64_t>(token) * num_chosen, row_first = static_cast<int64_t>(token) * num_experts;
  const auto write = [&](int expert, float x) {
    if constexpr (sizeof(Gradient) == 4) {
      dlogits[row_first + expert] = x;
    } else {
      dlogits[row_first + expert] = __float2bfloat16_rn(x);
    }
  };
  float weight = 0.0F, dweight = 0.0F;
  if (lane < num_chosen) {
    weight = weights[first + lane];
    dweight = dweights[first + lane];
  }
  float sum = 0.0F;
  for (int c = 0; c < num_chosen; ++c) sum += __shfl_sync(kAllLanes, weight * dweight, c);

  Logits<kEach> row;
  float largest = 0.0F, total = 1.0F;
  if (!normalises) {
    row.read(logits + row_first, num_experts, lane);
    largest = row.largest();
    total = row.are_finite(num_experts, lane) ? row.sum_of_exponentials(largest) : NAN;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int expert = i * kWarp + lane;
    if (expert >= num_experts) continue;
    write(expert, normalises ? 0.0F : -(__fdiv_rn(expf(row.values[i] - largest), total) * sum));
  }
  __syncwarp();  // the chosen experts' values replace what other lanes wrote
  if (lane < num_chosen) {
    write(ids[first + lane], normalises ? weight * (dweight - sum) : weight * dweight - weight * sum);
  }
}

constexpr int kOrderThreads = 1024, kTileTokens = static_cast<int>(kOrderTileTokens), kMaskWords = kTileTokens / 32;
constexpr int kMaskStride = kMaskWords + 1;  // so that neighbouring experts' words are in different banks

// Holds a bit for each token of a tile and each expert, which says whether the token chose it, in words of 32 tokens; and
// how many tokens before each word did.
class TileMasks {
 public:
  // `memory` [bytes(X)] is shared.
  __device__ TileMasks(uint32_t* memory, int num_experts, int num_tokens)
      : masks_(memory),
        before_(reinterpret_cast<uint16_t*>(memory + num_experts * kMaskStride)),
        num_experts_(num_experts),
        words_((num_tokens + 31) / 32) {}
  static size_t bytes(int64_t num_experts) {
    return static_cast<size_t>(num_experts) * kMaskStride * (sizeof(uint32_t) + sizeof(uint16_t));
  }

  // Reads the ids of `num_ids` / C tokens. Bits that are set by several threads have no order.
  __device__ void fill(const int32_t* ids, int num_ids, int num_chosen) {
    for (int i = threadIdx.x; i < num_experts_ * words_; i += blockDim.x) {
      masks_[i / words_ * kMaskStride + i % words_] = 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < num_ids; i += blockDim.x) {
      const int token = i / num_chosen;
      atomicOr(&masks_[ids[i] * kMaskStride + token / 32], 1U << token % 32);
    }
    __syncthreads();
  }
  // Returns how many tokens chose the expert, and notes the counts before each word, for rank().
  __device__ int count(int expert) {
    int sum = 0;
    for (int w = 0; w < words_; ++w) {
      before_[expert * kMaskStride + w] = static_cast<uint16_t>(sum);
      sum += __popc(masks_[expert * kMaskStride + w]);
    }
    return sum;
  }
  // Returns how many tokens before this one chose the expert.
  __device__ int rank(int expert, int token) const {
    const int word = expert * kMaskStride + token / 32;
    return before_[word] + __popc(masks_[word] & ((1U << token % 32) - 1U));
  }

 private:
  uint32_t* masks_;
  uint16_t* before_;
  int num_experts_, words_;  // those of the tile's tokens
};

// Makes offsets [X + 1] of counts [X]. One warp; the two may be the same memory.
__device__ void offsets_of_counts(const int32_t* counts, int32_t* offsets, int num_experts, int lane) {
  const int each = (num_experts + kWarp - 1) / kWarp, first = min(lane * each, num_experts);
  const int end = min(first + each, num_experts);
  int mine = 0;
  for (int x = first; x < end; ++x) mine += counts[x];
  int through = mine;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int other = __shfl_up_sync(kAllLanes, through, offset);
    if (lane >= offset) through += other;
  }
  int before = through - mine;
  for (int x = first; x < end; ++x) {
    const int count = counts[x];
    offsets[x] = before;
    before += count;
  }
  if (lane == kWarp - 1) offsets[num_experts] = through;
}

// Orders the places of a single tile. One block of at least X + 1 threads; `memory` [TileMasks::bytes(X)] is shared.
__device__ void order_tile(const int32_t* ids, int T, int num_experts, int num_chosen, uint32_t* memory,
                           int32_t* offsets, int32_t* places, int32_t* sources) {
  __shared__ int32_t first_of[kMostExperts + 1];
  TileMasks tile(memory, num_experts, T);
  tile.fill(ids, T * num_chosen, num_chosen);
  if (static_cast<int>(threadIdx.x) < num_experts) first_of[threadIdx.x] = tile.count(static_cast<int>(threadIdx.x));
  __syncthreads();
  if (threadIdx.x < kWarp) offsets_of_counts(first_of, first_of, num_experts, static_cast<int>(threadIdx.x));
  __syncthreads();
  if (static_cast<int>(threadIdx.x) <= num_experts) offsets[threadIdx.x] = first_of[threadIdx.x];
  for (int i = threadIdx.x; i < T * num_chosen; i += blockDim.x) {
    const int expert = ids[i], place = first_of[expert] + tile.rank(expert, i / num_chosen);
    places[i] = place;
    sources[place] = i;
  }
}

__global__ __launch_bounds__(kOrderThreads) void order_tile_kernel(const int32_t* ids, int T, int num_experts,
                                                                   int num_chosen, int32_t* offsets, int32_t* places,
                                                                   int32_t* sources) {
  extern __shared__ uint32_t memory[];
  wait_for_inputs();
  let_next_begin();
  order_tile(ids, T, num_experts, num_chosen, memory, offsets, places, sources);
}

// One block does all for a few tokens: two kernels less wait for each other.
template <int kEach>
__global__ __launch_bounds__(kOrderThreads) void route_tile_kernel(const float* logits, int T, int num_experts,
                                                                   int num_chosen, bool normalises, int32_t* ids,
                                                                   float* weights, int32_t* offsets, int32_t* places,
                                                                   int32_t* sources) {
  extern __shared__ uint32_t memory[];
  wait_for_inputs();
  let_next_begin();
  for (int token = threadIdx.x / kWarp; token < T; token += blockDim.x / kWarp) {
    route_token<kEach>(logits, token, num_experts, num_chosen, normalises, ids, weights);
  }
  __syncthreads();  // the block sees its own ids
  if (T > 1) return order_tile(ids, T, num_experts, num_chosen, memory, offsets, places, sources);
  // The places of a single token are in the order of its ids.
  const int i = static_cast<int>(threadIdx.x);
  int before = 0;
  for (int c = 0; c < num_chosen; ++c) before += ids[c] < i ? 1 : 0;
  if (i <= num_experts) offsets[i] = before;
  if (i < num_chosen) places[i] = sources[i] = i;
}

// Computes counts [tiles, X].
__global__ void count_tiles_kernel(const int32_t* ids, int64_t num_ids, int num_experts, int num_chosen,
                                   int32_t* counts) {
  __shared__ int32_t tile_counts[kMostExperts];
  for (int x = threadIdx.x; x < num_experts; x += blockDim.x) tile_counts[x] = 0;
  __syncthreads();
  const int64_t tile_ids = int64_t{kTileTokens} * num_chosen, first = blockIdx.x * tile_ids;
  for (int64_t i = first + threadIdx.x; i < min(first + tile_ids, num_ids); i += blockDim.x) {
    atomicAdd(&tile_counts[ids[i]], 1);  // whole numbers: their sum has no order
  }
  __syncthreads();
  for (int x = threadIdx.x; x < num_experts; x += blockDim.x) counts[blockIdx.x * num_experts + x] = tile_counts[x];
}

// One block: a thread for each expert replaces its counts by those of the tiles before, then the offsets are made.
__global__ __launch_bounds__(kMostExperts) void scan_tiles_kernel(int32_t* counts, int tiles, int num_experts,
                                                                  int32_t* offsets) {
  __shared__ int32_t first_of[kMostExperts + 1];
  const int expert = static_cast<int>(threadIdx.x);
  if (expert < num_experts) {
    constexpr int kAhead = 8;  // loads in flight
    int before = 0;
    for (int tile = 0; tile < tiles; tile += kAhead) {
      int32_t ahead[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) ahead[a] = tile + a < tiles ? counts[(tile + a) * num_experts + expert] : 0;
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if (tile + a < tiles) counts[(tile + a) * num_experts + expert] = before;
        before += ahead[a];
      }
    }
    first_of[expert] = before;
  }
  __syncthreads();
  if (expert < kWarp) offsets_of_counts(first_of, first_of, num_experts, expert);
  __syncthreads();
  for (int x = expert; x <= num_experts; x += static_cast<int>(blockDim.x)) offsets[x] = first_of[x];
}

__global__ __launch_bounds__(kOrderThreads) void place_tiles_kernel(const int32_t* ids, int64_t num_ids,
                                                                    int num_experts, int num_chosen,
                                                                    const int32_t* counts, const int32_t* offsets,
                                                                    int32_t* places, int32_t* sources) {
  extern __shared__ uint32_t memory[];
  TileMasks tile(memory, num_experts, kTileTokens);
  const int64_t tile_ids = int64_t{kTileTokens} * num_chosen, first = blockIdx.x * tile_ids;
  const int here = static_cast<int>(min(tile_ids, num_ids - first));
  tile.fill(ids + first, here, num_chosen);
  if (static_cast<int>(threadIdx.x) < num_experts) tile.count(static_cast<int>(threadIdx.x));
  __syncthreads();
  for (int i = threadIdx.x; i < here; i += blockDim.x) {
    const int expert = ids[first + i];
    const int place = offsets[expert] + counts[blockIdx.x * num_experts + expert] + tile.rank(expert, i / num_chosen);
    places[first + i] = place;
    sources[place] = static_cast<int32_t>(first + i);
  }
}

// Calls launch(each), a std::integral_constant: so many experts for each lane of a warp.
template <typename Launch>
cudaError_t launch_with_experts(int64_t num_experts, const Launch& launch) {
  if (num_experts <= 1 * kWarp) return launch(std::integral_constant<int, 1>());
  if (num_experts <= 2 * kWarp) return launch(std::integral_constant<int, 2>());
  if (num_experts <= 4 * kWarp) return launch(std::integral_constant<int, 4>());
  if (num_experts <= 8 * kWarp) return launch(std::integral_constant<int, 8>());
  if (num_experts <= 16 * kWarp) return launch(std::integral_constant<int, 16>());
  return cudaErrorInvalidValue;
}

// Returns the threads of a block that orders the places of so many tokens: one for each place and for each expert, and
// at least so many warps.
unsigned order_threads(int64_t T, int64_t num_experts, int64_t num_chosen, int64_t warps) {
  const int64_t most = std::max({num_experts + 1, T * num_chosen, warps * kWarp});
  return static_cast<unsigned>(std::min<int64_t>((most + kWarp - 1) / kWarp * kWarp, kOrderThreads));
}

// Up to so many tokens, one block chooses and orders; the warps of more would wait for each other.
constexpr int64_t kTokensOfOneBlock = 8;

unsigned row_blocks(int64_t T) { return static_cast<unsigned>((T + kRowWarps - 1) / kRowWarps); }

template <typename Gradient>
cudaError_t route_backward_in(const float* dweights, const float* logits, const int32_t* ids, const float* weights,
                              int64_t T, int64_t num_experts, int64_t num_chosen, bool normalises, Gradient* dlogits,
                              cudaStream_t stream) {
  if (T == 0) return cudaSuccess;
  return launch_with_experts(num_experts, [&](auto each) {
    route_backward_kernel<decltype(each)::value><<<row_blocks(T), kRowWarps * kWarp, 0, stream>>>(
        dweights, logits, ids, weights, static_cast<int>(T), static_cast<int>(num_experts),
        static_cast<int>(num_chosen), normalises, dlogits);
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t route(const float* logits, int64_t T, int64_t num_experts, int64_t num_chosen, bool normalises,
                  const RoutingMemory& to, cudaStream_t stream) {
  if (!supports_routing(num_experts, num_chosen)) return cudaErrorInvalidValue;
  const size_t shared_bytes = TileMasks::bytes(num_experts);
  const auto with_shared_bytes = [&](auto* kernel) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  };
  if (T > 0 && T <= kTokensOfOneBlock) {
    return launch_with_experts(num_experts, [&](auto each) {
      const auto kernel = route_tile_kernel<decltype(each)::value>;
      const cudaError_t status = with_shared_bytes(kernel);
      if (status != cudaSuccess) return status;
      return launch_dependent(kernel, T, 1, order_threads(T, num_experts, num_chosen, /*warps=*/T), shared_bytes,
                              stream, logits, T, num_experts, num_chosen, normalises, to.ids, to.weights, to.offsets,
                              to.places, to.sources);
    });
  }
  if (T > 0) {
    const cudaError_t status = launch_with_experts(num_experts, [&](auto each) {
      return launch_dependent(route_kernel<decltype(each)::value>, T, row_blocks(T), kRowWarps * kWarp, 0, stream,
                              logits, T, num_experts, num_chosen, normalises, to.ids, to.weights);
    });
    if (status != cudaSuccess) return status;
  }
  if (T <= kOrderTileTokens) {
    const cudaError_t status = with_shared_bytes(order_tile_kernel);
    if (status != cudaSuccess) return status;
    return launch_dependent(order_tile_kernel, T, 1, order_threads(T, num_experts, num_chosen, /*warps=*/1),
                            shared_bytes, stream, to.ids, T, num_experts, num_chosen, to.offsets, to.places,
                            to.sources);
  }
  const cudaError_t status = with_shared_bytes(place_tiles_kernel);
  if (status != cudaSuccess) return status;
  const int64_t num_ids = T * num_chosen;
  const auto tiles = static_cast<unsigned>((T + kOrderTileTokens - 1) / kOrderTileTokens);
  const int X = static_cast<int>(num_experts), C = static_cast<int>(num_chosen);
  count_tiles_kernel<<<tiles, kOrderThreads, 0, stream>>>(to.ids, num_ids, X, C, to.scratch);
  scan_tiles_kernel<<<1, kMostExperts, 0, stream>>>(to.scratch, static_cast<int>(tiles), X, to.offsets);
  place_tiles_kernel<<<tiles, kOrderThreads, shared_bytes, stream>>>(to.ids, num_ids, X, C, to.scratch, to.offsets,
                                                                     to.places, to.sources);
  return cudaGetLastError();
}

cudaError_t route_backward(const float* dweights, const float* logits, const int32_t* ids, const float* weights,
                           int64_t T, int64_t num_experts, int64_t num_chosen, bool normalises, float* dlogits,
                           cudaStream_t stream) {
  return route_backward_in(dweights, logits, ids, weights, T, num_experts, num_chosen, normalises, dlogits, stream);
}
cudaError_t route_backward(const float* dweights, const float* logits, const int32_t* ids, const float* weights,
                           int64_t T, int64_t num_experts, int64_t num_chosen, bool normalises, __nv_bfloat16* dlogits,
                           cudaStream_t stream) {
  return route_backward_in(dweights, logits, ids, weights, T, num_experts, num_chosen, normalises, dlogits, stream);
}

}  // namespace tandem::device::cuda
