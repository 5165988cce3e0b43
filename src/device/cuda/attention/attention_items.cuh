// What the kernels of attention by mma.sync share: an item's rows, the keys that they walk, and how a warp loads a unit
// of keys and turns its scores into weights. attention.cu gives each part of the keys to a warp, attention_few.cu to a
// block.
#pragma once

#include <cuda_bf16.h>

#include <flashinfer/attention/prefill.cuh>
#include <type_traits>

#include "device/block.h"
#include "device/cuda/attention/attention.h"
#include "device/cuda/attention/attention_softmax.cuh"

namespace tandem::device::cuda {

constexpr uint32_t kTile = kAttentionTile, kEveryLane = 0xffffffff;
constexpr uint32_t kParts = kAttentionParts;
constexpr int32_t kBlock = kBlockTokens;

struct ItemParams {
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

// Sets the keys of a step: 4 units of 64, 32 or 16 keys. They are fixed, because FlashInfer's launcher would ask the
// GPU how much shared memory it has, and sums would depend on that.
template <uint32_t kHeadDim>
constexpr uint32_t kUnitTiles = attention_step(kHeadDim) / kParts / 16;

template <uint32_t kHeadDim>
using Traits =
    flashinfer::KernelTraits<flashinfer::MaskMode::kCausal, kTile, flashinfer::get_num_mma_q(kTile),
                             kUnitTiles<kHeadDim>, kHeadDim / 16, kHeadDim / 16, flashinfer::get_num_warps_q(kTile),
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

  __device__ explicit Walk(const ItemParams& params)
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
  __device__ TileRows(const ItemParams& params, const Walk& walk, uint32_t lane) : window(params.window), lane(lane) {
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      params.group_size.divmod(walk.tile * kTile + lane / 4 + 8 * j, row[j], head[j]);
      first_seen[j] = walk.first_seen(static_cast<int32_t>(row[j]));
    }
    first_of_all = __reduce_min_sync(kEveryLane, min(first_seen[0], first_seen[1]));
    last_first = __reduce_max_sync(kEveryLane, max(first_seen[0], first_seen[1]));
  }

  // Takes the keys out of a unit's scores that a row does not see; the first of them is `first_key` of the step.
  template <uint32_t kKeyTiles>
  __device__ void mask(const Walk::Step& step, uint32_t first_key, float (&scores)[1][kKeyTiles][8]) const {
    constexpr auto kStep = static_cast<int32_t>(kKeyTiles * 16 * kParts);
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

// Loads units of keys and of their values to shared memory, by the lanes of one warp.
template <uint32_t kHeadDim, bool kPadded>
class UnitLoader {
 public:
  static constexpr uint32_t kKeys = kUnitTiles<kHeadDim> * 16, kStep = kKeys * kParts, kBlocks = kKeys / kBlock;
  static constexpr uint32_t kRow = kHeadDim / 8;      // pieces of 16 bytes of a row
  static constexpr uint32_t kRowsAtOnce = 32 / kRow;  // rows that a warp loads with one instruction
  using Tile = flashinfer::smem_t<Traits<kHeadDim>::SWIZZLE_MODE_KV>;
  static_assert(kStep == attention_step(kHeadDim));

  // The unit that a step has for a part, and the blocks that its keys are in. Blocks are looked up before they are
  // needed, because the table answers as slowly as the keys.
  struct Unit {
    Walk::Step step;
    int32_t blocks[kBlocks];
  };

  __device__ UnitLoader(const ItemParams& params, uint32_t kv_head, uint32_t part, uint32_t lane)
      : params_(params),
        kv_head_(kv_head),
        first_key_(part * kKeys),
        row_(lane / kRow),
        column_(lane % kRow),
        head_dim_(kPadded ? params.head_dim : kHeadDim) {}

  __device__ uint32_t first_key() const { return first_key_; }
  __device__ uint32_t head_dim() const { return head_dim_; }

  __device__ Unit look_up(const Walk::Step& step) const {
    Unit unit = {.step = step, .blocks = {}};
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; ++b) {
      const auto position = step.begin + static_cast<int32_t>(first_key_ + b * kBlock);
      if (position < step.end && position + kBlock > step.from) {
        unit.blocks[b] = __ldg(params_.table + step.page + position / kBlock);
      }
    }
    return unit;
  }
  // Positions before step.from and past step.end are not loaded: in shared memory their values become 0, and their keys
  // may be anything.
  // Columns that the head lacks become 0 in both.
  __device__ void load_keys(Tile& tile, const Unit& unit) const {
    load<kPadded ? Fill::kFillZero : Fill::kNoFill>(tile, params_.keys, unit);
  }
  __device__ void load_values(Tile& tile, const Unit& unit) const { load<Fill::kFillZero>(tile, params_.values, unit); }
  // Loads the queries of an item's tile, of which rows from end_row on become 0.
  __device__ void load_queries(flashinfer::smem_t<Traits<kHeadDim>::SWIZZLE_MODE_Q>& tile, const Walk& walk,
                               uint32_t num_kv_heads) const {
    const uint32_t group = params_.group_size, num_heads = num_kv_heads * group;
    const size_t first_head = size_t{static_cast<uint32_t>(walk.first_row)} * num_heads + kv_head_ * group;
    const auto end_row = static_cast<uint32_t>(walk.end_row(params_.group_size));
#pragma unroll
    for (uint32_t at = 0; at < kTile; at += kRowsAtOnce) {
      uint32_t row, head;
      params_.group_size.divmod(walk.tile * kTile + at + row_, row, head);
      tile.template load_128b_async<Fill::kFillZero>(
          tile.template get_permuted_offset<kRow>(at + row_, column_),
          params_.q + (first_head + size_t{row} * num_heads + head) * head_dim_ + column_ * 8,
          row < end_row && has_column());
    }
  }

 private:
  using Fill = flashinfer::cp_async::SharedMemFillMode;

  __device__ bool has_column() const { return !kPadded || column_ < head_dim_ / 8; }

  template <Fill kFill>
  __device__ void load(Tile& tile, const __nv_bfloat16* from, const Unit& unit) const {
    const auto place = static_cast<uint32_t>(unit.step.begin - unit.step.from) + first_key_ + row_;
    const auto count = static_cast<uint32_t>(unit.step.end - unit.step.from);
#pragma unroll
    for (uint32_t row = 0; row < kKeys; row += kRowsAtOnce) {
      const size_t offset = static_cast<uint32_t>(unit.blocks[row / kBlock]) * params_.block_stride +
                            (kv_head_ * kBlock + row % kBlock + row_) * head_dim_ + column_ * 8;
      tile.template load_128b_async<kFill>(tile.template get_permuted_offset<kRow>(row + row_, column_), from + offset,
                                           place + row < count && has_column());
    }
  }

  const ItemParams& params_;
  uint32_t kv_head_, first_key_, row_, column_, head_dim_;
};

// The parts of a thread's two rows, folded in their order. sums_of(p, j) returns the reference and the sum of weights
// that part p has for row j.
struct FoldedRows {
  template <typename SumsOf>
  __device__ __forceinline__ explicit FoldedRows(const SumsOf& sums_of) {
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      Folded folded;
#pragma unroll
      for (uint32_t p = 0; p < kParts; ++p) {
        const float2 part = sums_of(p, j);
        factors[j][p] = folded.fold(part.x, part.y);
      }
      reciprocal[j] = folded.reciprocal();
      log_sum[j] = folded.log_sum();
    }
  }
  Folded::Factors factors[2][kParts];
  float reciprocal[2], log_sum[2];
};

// Writes the results of an item's rows, of which a thread has two (TileRows).
class ItemOutput {
 public:
  __device__ ItemOutput(const ItemParams& params, const TileRows& rows, const Walk& walk, uint32_t kv_head,
                        uint32_t num_kv_heads)
      : params_(params), lane_(rows.lane) {
    const uint32_t group = params.group_size, num_heads = num_kv_heads * group;
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      is_there_[j] = rows.row[j] < static_cast<uint32_t>(walk.num_rows);
      head_[j] =
          (static_cast<uint32_t>(walk.first_row) + size_t{rows.row[j]}) * num_heads + kv_head * group + rows.head[j];
    }
  }
  // Writes the logarithms of the rows' sums of weights, where they are wanted. All lanes have them, and one of four
  // writes.
  __device__ void write_log_sums(const FoldedRows& rows) const {
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      if (params_.lse != nullptr && lane_ % 4 == 0 && is_there_[j]) params_.lse[head_[j]] = rows.log_sum[j];
    }
  }
  // Writes the thread's two columns of eight in row j.
  template <bool kPadded>
  __device__ void write(uint32_t j, uint32_t eight, uint32_t head_dim, float first, float second) const {
    if (!is_there_[j] || (kPadded && eight >= head_dim / 8)) return;
    *reinterpret_cast<__nv_bfloat162*>(params_.o + head_[j] * head_dim + eight * 8 + 2 * (lane_ % 4)) =
        __floats2bfloat162_rn(first, second);
  }

 private:
  const ItemParams& params_;
  uint32_t lane_;
  bool is_there_[2];
  size_t head_[2];
};

// Returns the largest scores of a unit, as powers of two: of the thread's two rows, the same in the four lanes of a
// row.
template <uint32_t kKeyTiles>
__device__ __forceinline__ float2 largest_of_unit(float scale, const float (&scores)[1][kKeyTiles][8]) {
  float most[2] = {-flashinfer::math::inf, -flashinfer::math::inf};
#pragma unroll
  for (uint32_t i = 0; i < kKeyTiles; ++i) {
#pragma unroll
    for (uint32_t r = 0; r < 8; ++r) most[r % 4 / 2] = fmaxf(most[r % 4 / 2], scores[0][i][r]);
  }
  return {maximum_of_four(most[0]) * scale, maximum_of_four(most[1]) * scale};
}

// Turns the scores of a unit into weights, and returns the sums of the thread's weights in its two rows.
template <uint32_t kKeyTiles>
__device__ __forceinline__ float2 weigh(float scale, const float (&reference)[2], float (&scores)[1][kKeyTiles][8]) {
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
  return {sum_of_pairs(pairs[0]), sum_of_pairs(pairs[1])};
}

// Multiplies a thread's sums of values, which belong to its two rows in turn, by a factor for each row.
template <uint32_t kTiles>
__device__ __forceinline__ void rescale(float (&out)[kTiles][8], const float (&factor)[2]) {
#pragma unroll
  for (uint32_t i = 0; i < kTiles; ++i) {
#pragma unroll
    for (uint32_t r = 0; r < 8; ++r) out[i][r] *= factor[r % 4 / 2];
  }
}

// Calls launch(width, is_padded) with constants: the kernel for heads of this size.
template <typename Launch>
cudaError_t launch_for_head(uint32_t head_dim, const Launch& launch) {
  const auto with_width = [&](auto width) {
    return head_dim == width ? launch(width, std::false_type()) : launch(width, std::true_type());
  };
  switch (head_width(head_dim)) {
    case 64: return with_width(std::integral_constant<uint32_t, 64>());
    case 128: return with_width(std::integral_constant<uint32_t, 128>());
    default: return with_width(std::integral_constant<uint32_t, 256>());
  }
}

// Returns whether the current device has the kernel of few items for such heads, and it is the faster one for so many.
bool computes_few_items(int64_t head_dim, int64_t num_items, int64_t num_kv_heads);
cudaError_t attention_of_few_items(const ItemParams& params, int64_t num_items, int64_t num_kv_heads,
                                   cudaStream_t stream);

}  // namespace tandem::device::cuda
