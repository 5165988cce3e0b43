// The kernels of attention_grad.h. attention_grad_kernel computes items: two warpgroups walk the tiles of 64 rows that
// see the item's block of keys. For a tile they compute, with keys as lines of the products,
//   scores [keys, rows] = k q^T,  dweights = v dout^T,  weights = exp2(scores), dscores = weights (dweights - d),
//   dv += weights dout,  dk += dscores q,  and dq [rows, K] = dscores^T k.
// Sums of keys stay in registers, 64 keys and 128 columns in each warpgroup: of 128 keys each has half of the keys;
// heads of 256 columns have blocks of 64 keys, and each warpgroup half of the columns. dq goes through shared memory to
// a warp that waits until the blocks before have added theirs, and lets the copy engine add it to global memory. The
// last products of a tile run while the next tile's scores are on their way.
// attention_grad_items.cuh has what is loaded and how dq is added, attention_grad_sums.cuh what the warpgroups compute.
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "device/cuda/attention/attention.h"
#include "device/cuda/attention/attention_grad.h"
#include "device/cuda/attention/attention_grad_items.cuh"
#include "device/cuda/attention/attention_grad_sums.cuh"
#include "device/cuda/attention/attention_softmax.cuh"
#include "device/cuda/gpu_limits.h"
#include "device/cuda/tensor_map.h"
#include "device/cuda/warpgroups.cuh"

namespace tandem::device::cuda {
namespace grad {
namespace {

template <uint32_t kHeadDim>
__device__ void compute_items(const Params& params, Storage<kHeadDim>& storage) {
  using S = Shape<kHeadDim>;
  std::conditional_t<S::kCutsKeys, HalfOfKeys<kHeadDim>, HalfOfColumns<kHeadDim>> consumer(params, storage);
  const bool is_first_lane = threadIdx.x % 32 == 0;
  for (Turn<kItems> place;; place.advance()) {
    storage.items_there[place.index].wait(place.parity);
    const auto& item = storage.items[place.index];
    if (item.kv_head < 0) return;
    float dk[S::kSumColumns / 8][4], dv[S::kSumColumns / 8][4];
#pragma unroll
    for (uint32_t i = 0; i < S::kSumColumns / 8; ++i) {
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e) dk[i][e] = dv[i][e] = 0.0F;
    }
    const Walk walk(params, item);
    if (walk.steps > 0) {  // or else no row sees a key of the block
      consumer.sum(item, walk, dk, dv);
      if (is_first_lane) storage.keys_free.arrive();
    }
    consumer.write_sums(item, dk, dv);
    __syncwarp();
    if (is_first_lane) storage.items_free[place.index].arrive();
  }
}

template <uint32_t kHeadDim>
__global__ __launch_bounds__(kThreads, 1) void attention_grad_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(kSwizzledRows) uint8_t shared_memory[];
  auto& storage = reinterpret_cast<Storage<kHeadDim>&>(shared_memory);
  using S = Shape<kHeadDim>;
  constexpr uint32_t kWarps = kConsumers * kGroup / 32;
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kItems; ++i) {
      storage.items_there[i].init(1);
      storage.items_free[i].init(kWarps + kConsumers);
    }
    storage.keys_there.init(1);
    storage.values_there.init(1);
    storage.keys_free.init(kWarps);
    for (uint32_t s = 0; s < kStages; ++s) {
      storage.queries_there[s].init(1);
      storage.queries_free[s].init(kWarps);
    }
    for (uint32_t s = 0; s < S::kDouts; ++s) {
      storage.douts_there[s].init(1);
      storage.douts_free[s].init(kWarps);
    }
    for (uint32_t i = 0; i < S::kDqPlaces; ++i) {
      for (uint32_t consumer = 0; consumer < kConsumers; ++consumer) {
        storage.dq_there[i][consumer].init(kGroup);
        storage.dq_free[i][consumer].init(1);
      }
    }
    show_to_products();
  }
  __syncthreads();
  if (threadIdx.x / kGroup == kConsumers) {
    give_registers<24>();
    const uint32_t warp = threadIdx.x % kGroup / 32;
    if (warp == 0) load_items(params, storage);
    if (warp == 1 || warp == 2) add_dq(params, storage, warp - 1);
  } else {
    take_registers<240>();
    compute_items(params, storage);
  }
}

// Runs before attention_grad_kernel. A block computes Params::row_terms of a tile and a head, and sets their num_added
// to 0. A row has 16 lanes.
__global__ void row_terms_kernel(const GradTile* tiles, const bf16* out, const bf16* dout, const float* lse,
                                 uint32_t head_dim, uint32_t parts, float* row_terms, uint32_t* num_added,
                                 int32_t* next_item) {
  const GradTile tile = tiles[blockIdx.x];
  const uint32_t head = blockIdx.y, heads = gridDim.y, lane = threadIdx.x % 16;
  const size_t place = static_cast<size_t>(blockIdx.x) * heads + head;
  if (threadIdx.x < parts) num_added[place * parts + threadIdx.x] = 0;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *next_item = 0;
  for (uint32_t row = threadIdx.x / 16; row < kRows; row += blockDim.x / 16) {
    const bool is_there = static_cast<int32_t>(row) < tile.rows;
    const size_t at = (static_cast<size_t>(tile.row) + row) * heads + head;
    float sum = 0.0F;
    for (uint32_t eight = lane; is_there && eight * 8 < head_dim; eight += 16) {
      const uint4 a = reinterpret_cast<const uint4*>(out + at * head_dim)[eight];
      const uint4 b = reinterpret_cast<const uint4*>(dout + at * head_dim)[eight];
      const auto* const x = reinterpret_cast<const __nv_bfloat162*>(&a);
      const auto* const y = reinterpret_cast<const __nv_bfloat162*>(&b);
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const float2 f = __bfloat1622float2(x[i]), g = __bfloat1622float2(y[i]);
        sum = __fmaf_rn(f.y, g.y, __fmaf_rn(f.x, g.x, sum));
      }
    }
#pragma unroll
    for (uint32_t distance = 8; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0U, sum, distance, 16);
    if (lane != 0) continue;
    // A row that is missing has the weight 0 for every key.
    row_terms[place * 2 * kRows + row] = is_there ? lse[at] * static_cast<float>(kLog2E) : INFINITY;
    row_terms[place * 2 * kRows + kRows + row] = sum;
  }
}

// Runs after attention_grad_kernel. A block turns the float32 sums of a tile and a head into dq. A thread has eight
// columns of a row.
template <uint32_t kHeadDim>
__global__ void round_queries_kernel(const GradTile* tiles, const float* dq_sums, uint32_t head_dim, float scale,
                                     bf16* dq) {
  using S = Shape<kHeadDim>;
  const GradTile tile = tiles[blockIdx.x];
  const uint32_t head = blockIdx.y, heads = gridDim.y;
  const float* const from = dq_sums + (static_cast<size_t>(blockIdx.x) * heads + head) * kRows * kHeadDim;
  for (uint32_t i = threadIdx.x; i < static_cast<uint32_t>(tile.rows) * S::kEights; i += blockDim.x) {
    const uint32_t row = i / S::kEights, eight = i % S::kEights;
    if (8 * eight >= head_dim) continue;
    // The first of the four threads that hold it, and its pair of numbers there.
    const uint32_t thread = row / 16 * 32 + row % 8 * 4, pair = row / 8 % 2;
    uint4 numbers = {};
    auto* const words = reinterpret_cast<uint32_t*>(&numbers);
#pragma unroll
    for (uint32_t lane = 0; lane < 4; ++lane) {
      float2 two = {};
      if (tile.keys > 0) two = reinterpret_cast<const float2*>(from)[(eight * kGroup + thread + lane) * 2 + pair];
      words[lane] = rounded(two.x * scale, two.y * scale);
    }
    const size_t at = ((static_cast<size_t>(tile.row) + row) * heads + head) * head_dim + 8 * eight;
    *reinterpret_cast<uint4*>(dq + at) = numbers;
  }
}

template <uint32_t kHeadDim>
cudaError_t launch(const Params& params, const AttentionGradCall& call, cudaStream_t stream) {
  constexpr int kSharedBytes = sizeof(Storage<kHeadDim>);
  static_assert(kSharedBytes <= attention_grad_shared_bytes(kHeadDim));
  const cudaError_t status =
      cudaFuncSetAttribute(attention_grad_kernel<kHeadDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (status != cudaSuccess) return status;
  const dim3 places(static_cast<uint32_t>(call.num_tiles), params.group * params.num_kv_heads);
  row_terms_kernel<<<places, 256, 0, stream>>>(call.tiles, static_cast<const bf16*>(call.out_THK), params.dout_data,
                                               call.lse_TH, params.head_dim, Shape<kHeadDim>::kParts, params.row_terms,
                                               params.num_added, params.next_item);
  if (call.num_items > 0) {
    const auto blocks = static_cast<uint32_t>(std::min(gpu_limits().multiprocessors, call.num_items));
    attention_grad_kernel<kHeadDim><<<blocks, kThreads, kSharedBytes, stream>>>(params);
  }
  round_queries_kernel<kHeadDim><<<places, 256, 0, stream>>>(call.tiles, params.dq, params.head_dim, params.scale,
                                                             static_cast<bf16*>(call.dq_THK));
  return cudaGetLastError();
}

}  // namespace
}  // namespace grad

bool computes_attention_grad(const AttentionHeads& heads) { return runs_attention_grad(gpu_limits(), heads.head_dim); }

cudaError_t attention_grad(const AttentionGradCall& call, cudaStream_t stream) {
  const auto kv_heads = static_cast<uint64_t>(call.heads.num_kv_heads),
             heads = kv_heads * static_cast<uint64_t>(call.heads.group),
             head_dim = static_cast<uint64_t>(call.heads.head_dim);
  const GradScratch scratch(call.heads, call.num_tiles);
  auto* const memory = static_cast<uint8_t*>(call.scratch);
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  grad::Params params = {.q = {},
                         .dout = {},
                         .k = {},
                         .v = {},
                         .q_data = static_cast<const grad::bf16*>(call.q_THK),
                         .dout_data = static_cast<const grad::bf16*>(call.dout_THK),
                         .k_data = static_cast<const grad::bf16*>(call.k_nGK),
                         .v_data = static_cast<const grad::bf16*>(call.v_nGK),
                         .dk = static_cast<grad::bf16*>(call.dk_nGK),
                         .dv = static_cast<grad::bf16*>(call.dv_nGK),
                         .scale = static_cast<float>(scale),
                         .scale_log2 = static_cast<float>(kLog2E * scale),
                         .group = static_cast<uint32_t>(call.heads.group),
                         .num_kv_heads = static_cast<uint32_t>(kv_heads),
                         .head_dim = static_cast<uint32_t>(head_dim),
                         .window = keys_of_window(call.window),
                         .num_items = static_cast<int32_t>(call.num_items),
                         .segments = call.segments,
                         .items = call.items,
                         .row_terms = reinterpret_cast<float*>(memory + int64_t{scratch.row_terms}),
                         .dq = reinterpret_cast<float*>(memory + int64_t{scratch.dq}),
                         .num_added = reinterpret_cast<uint32_t*>(memory + int64_t{scratch.num_added}),
                         .next_item = reinterpret_cast<int32_t*>(memory + int64_t{scratch.next_item})};
  const auto box_keys = static_cast<uint32_t>(grad_keys(call.heads.head_dim));
  const auto describe = [&](CUtensorMap& map, const void* data, uint64_t in_row, int64_t rows, uint32_t box_rows) {
    return describe_tensor(map, data, {head_dim, in_row, static_cast<uint64_t>(rows)},
                           {head_dim * 2, in_row * head_dim * 2}, {64, 1, box_rows});
  };
  if (call.num_items > 0 && !(describe(params.q, call.q_THK, heads, call.num_rows, grad::kRows) &&
                              describe(params.dout, call.dout_THK, heads, call.num_rows, grad::kRows) &&
                              describe(params.k, call.k_nGK, kv_heads, call.num_keys, box_keys) &&
                              describe(params.v, call.v_nGK, kv_heads, call.num_keys, box_keys))) {
    return cudaErrorInvalidValue;
  }
  if (call.num_tiles == 0) return cudaSuccess;
  switch (head_width(call.heads.head_dim)) {
    case 64: return grad::launch<64>(params, call, stream);
    case 128: return grad::launch<128>(params, call, stream);
    case 256: return grad::launch<256>(params, call, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace tandem::device::cuda
