// The kernel of attention for all rows and all GPUs: a loop of our own over keys, put together from the parts of
// FlashInfer's paged kernel (Ye et al. 2025), whose softmax is that of attention_softmax.cuh.
#include <cuda_bf16.h>

#include <cmath>
#include <flashinfer/attention/prefill.cuh>
#include <type_traits>

#include "device/block.h"
#include "device/cuda/attention/attention.h"
#include "device/cuda/attention/attention_softmax.cuh"
#include "device/cuda/kernel_choice.h"
#include "device/cuda/launch.cuh"

namespace tandem::device::cuda {
namespace {

constexpr uint32_t kTile = kAttentionTile, kEveryLane = 0xffffffff;
constexpr uint32_t kWarps = kAttentionParts;  // warps of a block, each with its own part of every step's keys
constexpr int32_t kBlock = kBlockTokens;
constexpr int64_t kMaxOffset = int64_t{1} << 32;  // end of the kernel's 32 bit offsets

struct Params {
  __nv_bfloat16 *q, *o;
  float* lse;
  __nv_bfloat16 *keys, *values;  // addresses in block 0
  size_t block_stride;
  uint32_t head_dim;
  flashinfer::uint_fastdiv group_size;
  float scale_log2;                                               // scale for scores as powers of two
  int32_t window;                                                 // keys_of_window()
  const int32_t *item_row, *item_rows, *item_tile, *item_shared;  // as in AttentionWork
  const int32_t *row_keys, *row_page, *table;
};

// FlashInfer's parts are templates over a variant of attention, of which they read this member.
struct Variant {
  static constexpr bool use_softmax = false;  // leaves sums of weights to us
};

// kHeadDim, here and below, is head_width(): the columns that a head has in shared memory and in registers. In a kernel
// that is kPadded, heads have fewer columns in global memory, and the others are zeros.

// Sets the keys of a step: 4 warps of 64, 32 or 16 keys. They are fixed, because FlashInfer's launcher would ask the
// GPU how much shared memory it has, and sums would depend on that.
template <uint32_t kHeadDim>
constexpr uint32_t kWarpKeyTiles = attention_step(kHeadDim) / kWarps / 16;

template <uint32_t kHeadDim>
using Traits =
    flashinfer::KernelTraits<flashinfer::MaskMode::kCausal, kTile, flashinfer::get_num_mma_q(kTile),
                             kWarpKeyTiles<kHeadDim>, kHeadDim / 16, kHeadDim / 16, flashinfer::get_num_warps_q(kTile),
                             flashinfer::get_num_warps_kv(kTile), flashinfer::PosEncodingMode::kNone, __nv_bfloat16,
                             __nv_bfloat16, __nv_bfloat16, float, int32_t, Variant>;

// An item's rows, and the steps of keys that they walk. A run walks its keys from the step in which the first one lies
// that a row of the tile sees, to the last that the tile sees. Sequences that begin alike walk the keys that they
// share, then what each row has alone. Steps begin at multiples of their length, whatever the window.
class Walk {
 public:
  struct Step {
    int32_t begin, end;  // first position of the step, and end of the keys that are walked from here
    int32_t from;        // no row sees a position below this; it may be negative
    int32_t page;        // index in the table at which their sequence begins
    int32_t owner;       // the row that alone sees them; -1: rows see them by position
    __device__ bool is_left() const { return begin < end; }
  };

  __device__ explicit Walk(const Params& params)
      : first_row(params.item_row[blockIdx.x]),
        num_rows(params.item_rows[blockIdx.x]),
        tile(params.item_tile[blockIdx.x]),
        shared_(params.item_shared[blockIdx.x]),
        window_(params.window) {
    if (first_row < 0) return;
    // If each row walks by itself, lane i keeps the values of row i; otherwise every lane keeps those of the last row.
    const int32_t last = num_rows - 1;
    const int32_t row = first_row + (shared_ > 0 ? min(static_cast<int32_t>(threadIdx.x), last) : last);
    keys_ = params.row_keys[row];
    page_ = params.row_page[row];
  }

  // Returns the end of the tile's rows, counted from first_row. `group` is the number of query heads of a KV head.
  __device__ int32_t end_row(uint32_t group) const {
    return min(num_rows, static_cast<int32_t>((tile + 1) * kTile + group - 1) / static_cast<int32_t>(group));
  }

  // Returns the first position that a row sees, counted from 0; it is negative if the window is longer than the row's
  // keys. All lanes call it together.
  __device__ int32_t first_seen(int32_t row) const {
    return (shared_ > 0 ? __shfl_sync(kEveryLane, keys_, row) : keys_ - num_rows + 1 + row) - window_;
  }

  // `from` is the least of first_seen() of the tile's rows.
  __device__ Step first(uint32_t group, int32_t from, int32_t num_keys) const {
    const int32_t end = shared_ > 0 ? shared_ : keys_ - num_rows + end_row(group);
    return settled({.begin = step_of(from, num_keys),
                    .end = max(end, 0),
                    .from = from,
                    .page = __shfl_sync(kEveryLane, page_, 0),
                    .owner = -1},
                   num_keys);
  }

  __device__ Step after(Step step, int32_t num_keys) const {
    step.begin += num_keys;
    return settled(step, num_keys);
  }

  int32_t first_row, num_rows, tile;

 private:
  // Returns where the step begins in which a position lies.
  __device__ static int32_t step_of(int32_t position, int32_t num_keys) { return max(position, 0) & -num_keys; }

  // Goes on to the next row that walks alone where no key is left.
  __device__ Step settled(Step step, int32_t num_keys) const {
    while (!step.is_left() && shared_ > 0 && step.owner + 1 < num_rows) {
      ++step.owner;
      step.end = __shfl_sync(kEveryLane, keys_, step.owner);
      step.from = step.end - window_;
      step.begin = max(shared_, step_of(step.from, num_keys));
      step.page = __shfl_sync(kEveryLane, page_, step.owner);
    }
    return step;
  }

  int32_t shared_, keys_ = 0, page_ = 0, window_;
};

// The rows of a tile, in the layout in which a thread holds them in scores and out: one in elements 0, 1, 4 and 5 of
// each eight, another in the rest.
struct TileRows {
  __device__ TileRows(const Params& params, const Walk& walk, uint32_t lane) : window(params.window), lane(lane) {
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      params.group_size.divmod(walk.tile * kTile + lane / 4 + 8 * j, row[j], head[j]);
      first_seen[j] = walk.first_seen(static_cast<int32_t>(row[j]));
    }
    first_of_all = __reduce_min_sync(kEveryLane, min(first_seen[0], first_seen[1]));
    last_first = __reduce_max_sync(kEveryLane, max(first_seen[0], first_seen[1]));
  }

  // Takes the keys out of a warp's scores that a row does not see; the first of them is `first_key` of the step.
  template <uint32_t kKeyTiles>
  __device__ void mask(const Walk::Step& step, uint32_t first_key, float (&scores)[1][kKeyTiles][8]) const {
    constexpr auto kStep = static_cast<int32_t>(kKeyTiles * 16 * kWarps);
    if (step.owner < 0 && step.begin + kStep <= first_of_all + window && step.begin >= last_first) {
      // All rows see all keys.
#pragma unroll
      for (uint32_t i = 0; i < kKeyTiles; ++i) {
#pragma unroll
        for (uint32_t r = 0; r < 8; ++r) scores[0][i][r] = finite_or_nan(scores[0][i][r]);
      }
      return;
    }
    // A row sees `window` positions from first_seen on. One comparison of numbers without a sign asks for both ends.
    const int32_t begin = step.begin + static_cast<int32_t>(first_key + 2 * (lane % 4));
    uint32_t seen[2];
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      seen[j] = step.owner < 0 || step.owner == static_cast<int32_t>(row[j]) ? static_cast<uint32_t>(window) : 0;
    }
#pragma unroll
    for (uint32_t i = 0; i < kKeyTiles; ++i) {
#pragma unroll
      for (uint32_t r = 0; r < 8; ++r) {
        const uint32_t j = r % 4 / 2;
        const auto place = static_cast<uint32_t>(begin - first_seen[j]) + i * 16 + 8 * (r / 4) + r % 2;
        scores[0][i][r] = place < seen[j] ? finite_or_nan(scores[0][i][r]) : -flashinfer::math::inf;
      }
    }
  }

  uint32_t row[2], head[2];
  int32_t first_seen[2];             // the first position that the row sees
  int32_t first_of_all, last_first;  // the least and the largest of all rows
  int32_t window;
  uint32_t lane;
};

// Turns the scores of a warp's unit into weights, and rescales the sums of rows whose reference moves.
template <uint32_t kKeyTiles, uint32_t kValueTiles>
__device__ __forceinline__ void weigh(float scale, float (&scores)[1][kKeyTiles][8], float (&out)[1][kValueTiles][8],
                                      float (&reference)[2], float (&sum)[2]) {
  float most[2] = {-flashinfer::math::inf, -flashinfer::math::inf}, factor[2];
#pragma unroll
  for (uint32_t i = 0; i < kKeyTiles; ++i) {
#pragma unroll
    for (uint32_t r = 0; r < 8; ++r) most[r % 4 / 2] = fmaxf(most[r % 4 / 2], scores[0][i][r]);
  }
#pragma unroll
  for (uint32_t j = 0; j < 2; ++j) {
    factor[j] = move_reference(reference[j], maximum_of_four(most[j]) * scale);
    sum[j] *= factor[j];
  }
  float pairs[2][2 * kKeyTiles];
#pragma unroll
  for (uint32_t i = 0; i < kKeyTiles; ++i) {
#pragma unroll
    for (uint32_t r = 0; r < 8; r += 2) {
      float* const pair = scores[0][i] + r;
      pair[0] = weight_of(pair[0], scale, reference[r % 4 / 2]);
      pair[1] = weight_of(pair[1], scale, reference[r % 4 / 2]);
      pairs[r % 4 / 2][2 * i + r / 4] = pair[0] + pair[1];
    }
  }
#pragma unroll
  for (uint32_t j = 0; j < 2; ++j) sum[j] += sum_of_pairs(pairs[j]);
  // A vote pays for a unit of 64 keys, and for sums of 256 columns. Otherwise it takes longer than to multiply by 1.
  if ((kKeyTiles == 4 || kValueTiles == 16) && __all_sync(kEveryLane, factor[0] == 1.0F && factor[1] == 1.0F)) return;
#pragma unroll
  for (uint32_t i = 0; i < kValueTiles; ++i) {
#pragma unroll
    for (uint32_t r = 0; r < 8; ++r) out[0][i][r] *= factor[r % 4 / 2];
  }
}

// Each warp has this shared memory. It holds the keys and values of a step while the warp walks them, and at the end
// the warp's sums, which the other warps read.
template <uint32_t kHeadDim>
union WarpStorage {
  struct {
    alignas(128) __nv_bfloat16 keys[kWarpKeyTiles<kHeadDim> * 16 * kHeadDim];
    alignas(128) __nv_bfloat16 values[kWarpKeyTiles<kHeadDim> * 16 * kHeadDim];
  };
  struct {
    float out[kHeadDim / 16][32][8];
    float2 reference_sum[2][8];
  } sums;
};
template <uint32_t kHeadDim>
struct BlockStorage {
  alignas(128) __nv_bfloat16 q[kTile * kHeadDim];
  WarpStorage<kHeadDim> warps[kWarps];
};

// A block has an item and a KV head. Its warps walk the keys, each its own part of every step, and none waits for
// another before all have walked; then their four sums become one.
template <uint32_t kHeadDim, bool kPadded>
__global__ __launch_bounds__(32 * kWarps, attention_blocks_at_once(kHeadDim)) void attention_kernel(
    const __grid_constant__ Params params) {
  using T = Traits<kHeadDim>;
  namespace fi = flashinfer;
  namespace cp_async = flashinfer::cp_async;
  constexpr uint32_t kStep = T::CTA_TILE_KV, kPart = kStep / kWarps, kBlocks = kPart / kBlock, kRow = kHeadDim / 8;
  constexpr uint32_t kRowsAtOnce = 32 / kRow;  // rows that a warp loads with one instruction
  static_assert(kStep == attention_step(kHeadDim));
  static_assert(T::NUM_WARPS == kWarps && T::NUM_WARPS_Q == 1 && T::NUM_MMA_Q == 1);

  extern __shared__ __align__(128) uint8_t shared_memory[];
  auto& storage = reinterpret_cast<BlockStorage<kHeadDim>&>(shared_memory);
  let_next_begin();
  const Walk walk(params);
  if (walk.first_row < 0) return wait_for_inputs();
  const uint32_t lane = threadIdx.x, warp = threadIdx.y, kv_head = blockIdx.z;
  const uint32_t group = params.group_size, num_heads = gridDim.z * group, packed_begin = walk.tile * kTile;
  const uint32_t head_dim = kPadded ? params.head_dim : kHeadDim, columns = head_dim / 8;
  const size_t first_head = size_t{static_cast<uint32_t>(walk.first_row)} * num_heads + kv_head * group;
  auto& own = storage.warps[warp];

  fi::smem_t<T::SWIZZLE_MODE_Q> q_tile(storage.q);
  fi::smem_t<T::SWIZZLE_MODE_KV> key_tile(own.keys), value_tile(own.values);
  uint32_t q_read = q_tile.template get_permuted_offset<kRow>(lane % 16, lane / 16);
  uint32_t key_read = key_tile.template get_permuted_offset<kRow>(8 * (lane / 16) + lane % 8, (lane % 16) / 8);
  uint32_t value_read = value_tile.template get_permuted_offset<kRow>(lane % 16, lane / 16);
  const uint32_t first_key = warp * kPart, row_in_part = lane / kRow, column = lane % kRow;

  // The warp's part of a step, and the blocks that its keys are in. Blocks are looked up a step before they are needed,
  // because the table answers as slowly as the keys.
  struct Part {
    Walk::Step step;
    int32_t blocks[kBlocks];
  };
  const auto look_up = [&](const Walk::Step& step) {
    Part part = {.step = step, .blocks = {}};
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; ++b) {
      const auto position = step.begin + static_cast<int32_t>(first_key + b * kBlock);
      if (position < step.end && position + kBlock > step.from) {
        part.blocks[b] = __ldg(params.table + step.page + position / kBlock);
      }
    }
    return part;
  };
  const auto load = [&](auto fill, fi::smem_t<T::SWIZZLE_MODE_KV>& tile, const __nv_bfloat16* from, const Part& part) {
    const auto place = static_cast<uint32_t>(part.step.begin - part.step.from) + first_key + row_in_part;
    const auto count = static_cast<uint32_t>(part.step.end - part.step.from);
#pragma unroll
    for (uint32_t row = 0; row < kPart; row += kRowsAtOnce) {
      const size_t offset = static_cast<uint32_t>(part.blocks[row / kBlock]) * params.block_stride +
                            (kv_head * kBlock + row % kBlock + row_in_part) * head_dim + column * 8;
      tile.template load_128b_async<decltype(fill)::value>(
          tile.template get_permuted_offset<kRow>(row + row_in_part, column), from + offset,
          place + row < count && (!kPadded || column < columns));
    }
    cp_async::commit_group();
  };
  // Positions before step.from and past step.end are not loaded: in shared memory their values become 0, and their keys
  // may be anything.
  // Columns that the head lacks become 0 in both.
  using cp_async::SharedMemFillMode;
  constexpr SharedMemFillMode kKeyFill = kPadded ? SharedMemFillMode::kFillZero : SharedMemFillMode::kNoFill;
  const auto load_keys = [&](const Part& part) {
    load(std::integral_constant<SharedMemFillMode, kKeyFill>(), key_tile, params.keys, part);
  };
  const auto load_values = [&](const Part& part) {
    load(std::integral_constant<SharedMemFillMode, SharedMemFillMode::kFillZero>(), value_tile, params.values, part);
  };

  const TileRows rows(params, walk, lane);
  Walk::Step step = walk.first(group, rows.first_of_all, kStep);
  const Part first = look_up(step);
  Part next = look_up(walk.after(step, kStep));
  wait_for_inputs();
  if (warp == 0) {
    const auto end_row = static_cast<uint32_t>(walk.end_row(group));
#pragma unroll
    for (uint32_t at = 0; at < kTile; at += kRowsAtOnce) {
      uint32_t row, head;
      params.group_size.divmod(packed_begin + at + row_in_part, row, head);
      q_tile.template load_128b_async<SharedMemFillMode::kFillZero>(
          q_tile.template get_permuted_offset<kRow>(at + row_in_part, column),
          params.q + (first_head + size_t{row} * num_heads + head) * head_dim + column * 8,
          row < end_row && (!kPadded || column < columns));
    }
  }
  cp_async::commit_group();
  load_keys(first);
  load_values(first);

  float scores[1][T::NUM_MMA_KV][8], reference[2] = {kNoKey, kNoKey}, sum[1][2] = {};
  alignas(16) float out[1][T::NUM_MMA_D_VO_TILE][8] = {};
  cp_async::wait_group<2>();
  __syncthreads();  // q is there

#pragma unroll 1
  while (step.is_left()) {
    cp_async::wait_group<1>();
    __syncwarp();
    fi::compute_qk<T>(&q_tile, &q_read, &key_tile, &key_read, /*k_sf_smem=*/nullptr, lane, scores);
    __syncwarp();
    load_keys(next);
    rows.mask(step, first_key, scores);
    weigh(params.scale_log2, scores, out, reference, sum[0]);

    cp_async::wait_group<1>();
    __syncwarp();
    fi::compute_sfm_v<T>(&value_tile, &value_read, /*v_sf_smem=*/nullptr, lane, scores, out, sum);
    __syncwarp();
    load_values(next);

    step = next.step;
    next = look_up(walk.after(step, kStep));
  }
  cp_async::wait_group<0>();
  __syncwarp();

  sum[0][0] = sum_of_four(sum[0][0]);
  sum[0][1] = sum_of_four(sum[0][1]);
#pragma unroll
  for (uint32_t i = 0; i < T::NUM_MMA_D_VO_TILE; ++i) fi::vec_t<float, 8>::memcpy(own.sums.out[i][lane], out[0][i]);
  if (lane % 4 == 0) {
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) own.sums.reference_sum[j][lane / 4] = make_float2(reference[j], sum[0][j]);
  }
  __syncthreads();

  // Folds the four sums, in their order. Each warp has a quarter of the columns.
  Folded folded[2];
  Folded::Factors factors[2][kWarps];
  float reciprocal[2];
#pragma unroll
  for (uint32_t j = 0; j < 2; ++j) {
#pragma unroll
    for (uint32_t w = 0; w < kWarps; ++w) {
      const float2 part = storage.warps[w].sums.reference_sum[j][lane / 4];
      factors[j][w] = folded[j].fold(part.x, part.y);
    }
    reciprocal[j] = folded[j].reciprocal();
    if (params.lse != nullptr && warp == 0 && lane % 4 == 0 && rows.row[j] < static_cast<uint32_t>(walk.num_rows)) {
      params.lse[first_head + size_t{rows.row[j]} * num_heads + rows.head[j]] = folded[j].log_sum();
    }
  }
  constexpr uint32_t kQuarter = T::NUM_MMA_D_VO_TILE / kWarps;
#pragma unroll
  for (uint32_t q = 0; q < kQuarter; ++q) {
    const uint32_t i = warp * kQuarter + q;
    float values[8] = {};
#pragma unroll
    for (uint32_t w = 0; w < kWarps; ++w) {
      fi::vec_t<float, 8> part;
      part.load(storage.warps[w].sums.out[i][lane]);
#pragma unroll
      for (uint32_t r = 0; r < 8; ++r) {
        const Folded::Factors factor = factors[r % 4 / 2][w];
        values[r] = values[r] * factor.folded + part[r] * factor.part;
      }
    }
#pragma unroll
    for (uint32_t r = 0; r < 8; r += 2) {
      const uint32_t j = r % 4 / 2;
      if (rows.row[j] >= static_cast<uint32_t>(walk.num_rows) || (kPadded && 2 * i + r / 4 >= columns)) continue;
      __nv_bfloat16* const to = params.o + (first_head + size_t{rows.row[j]} * num_heads + rows.head[j]) * head_dim;
      *reinterpret_cast<__nv_bfloat162*>(to + i * 16 + 2 * (lane % 4) + 8 * (r / 4)) =
          __floats2bfloat162_rn(finished(values[r], reciprocal[j]), finished(values[r + 1], reciprocal[j]));
    }
  }
}

template <uint32_t kHeadDim, bool kPadded>
cudaError_t launch_kernel(const Params& params, int64_t num_items, int64_t num_kv_heads, cudaStream_t stream) {
  static_assert(!Traits<kHeadDim>::IsInvalid());
  constexpr int kSharedBytes = sizeof(BlockStorage<kHeadDim>);
  static_assert(kSharedBytes == attention_shared_bytes(kHeadDim) && kSharedBytes <= kLeastSharedBytes);
  const auto kernel = attention_kernel<kHeadDim, kPadded>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (status != cudaSuccess) return status;
  const dim3 grid(static_cast<uint32_t>(num_items), 1, static_cast<uint32_t>(num_kv_heads)), block(32, kWarps);
  return launch_dependent(kernel, num_items, grid, block, kSharedBytes, stream, params);
}

template <uint32_t kHeadDim>
cudaError_t launch(const Params& params, int64_t num_items, int64_t num_kv_heads, cudaStream_t stream) {
  return params.head_dim == kHeadDim ? launch_kernel<kHeadDim, false>(params, num_items, num_kv_heads, stream)
                                     : launch_kernel<kHeadDim, true>(params, num_items, num_kv_heads, stream);
}

}  // namespace

cudaError_t attention_forward(const AttentionForward& call, cudaStream_t stream) {
  const AttentionWork& work = call.work;
  const int64_t heads = call.num_heads, kv_heads = call.kv.num_kv_heads, head_dim = call.kv.head_dim;
  if (!supports_attention(head_dim, heads, kv_heads) || work.num_rows * heads * head_dim >= kMaxOffset ||
      work.num_sequences * work.max_blocks * kBlockTokens >= kMaxOffset / 2 || call.kv.block_stride >= kMaxOffset ||
      work.heads != AttentionHeads{heads / kv_heads, kv_heads, head_dim}) {
    return cudaErrorInvalidValue;
  }
  const int64_t large = work.num_large_items;
  if (large > 0) {
    const cudaError_t status = call.refillable ? cudaErrorInvalidValue : attention_of_large_items(call, stream);
    if (status != cudaSuccess) return status;
  }
  const int64_t num_items = call.refillable ? work.num_rows : work.num_items - large;
  if (num_items == 0) return cudaSuccess;

  auto* const keys = static_cast<__nv_bfloat16*>(call.kv.data);
  const Params params = {.q = static_cast<__nv_bfloat16*>(const_cast<void*>(call.q_THK)),
                         .o = static_cast<__nv_bfloat16*>(call.out_THK),
                         .lse = call.lse_TH,
                         .keys = keys,
                         .values = keys + kv_heads * kBlockTokens * head_dim,
                         .block_stride = static_cast<size_t>(call.kv.block_stride),
                         .head_dim = static_cast<uint32_t>(head_dim),
                         .group_size = flashinfer::uint_fastdiv(static_cast<uint32_t>(heads / kv_heads)),
                         .scale_log2 = static_cast<float>(kLog2E / std::sqrt(static_cast<double>(head_dim))),
                         .window = keys_of_window(call.window),
                         .item_row = call.words + work.item_row + large,
                         .item_rows = call.words + work.item_rows + large,
                         .item_tile = call.words + work.item_tile + large,
                         .item_shared = call.words + work.item_shared + large,
                         .row_keys = call.words + work.row_keys,
                         .row_page = call.words + work.row_page,
                         .table = call.words + work.table};
  switch (head_width(head_dim)) {
    case 64: return launch<64>(params, num_items, kv_heads, stream);
    case 128: return launch<128>(params, num_items, kv_heads, stream);
    default: return launch<256>(params, num_items, kv_heads, stream);
  }
}

}  // namespace tandem::device::cuda
