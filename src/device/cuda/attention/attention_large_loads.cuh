// The first half of attention_large.cu's kernel: the items that a block takes, the units of keys that each walks, what
// lies in shared memory, and the warps that load it.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <limits>

#include "device/block.h"
#include "device/cuda/attention/attention.h"
#include "device/cuda/tensor_map.h"
#include "device/cuda/warpgroups.cuh"

namespace tandem::device::cuda::large {

constexpr uint32_t kRows = kLargeTile, kKeys = 128;  // query rows of an item and keys of a tile
constexpr uint32_t kStages = 2, kItems = 2;          // tiles of keys, and of values, and items in shared memory
constexpr uint32_t kGroup = 128, kConsumers = 2;     // threads of a warpgroup; warpgroups that compute
constexpr uint32_t kThreads = (kConsumers + 1) * kGroup;
constexpr uint32_t kPage = kBlockTokens;
constexpr int32_t kNever = std::numeric_limits<int32_t>::max() / 2;
static_assert(kRows == kConsumers * 64);

struct Params {
  CUtensorMap q;   // [K, H, T], boxes of 64 x group x tokens of an item
  CUtensorMap kv;  // [K, 2 * G * kBlockTokens, blocks], boxes of 64 x kBlockTokens x 1
  const __nv_bfloat16* kv_data;
  size_t block_stride;
  __nv_bfloat16* o;
  float* lse;
  float scale_log2;
  uint32_t group, num_kv_heads, num_items;
  const int32_t *item_row, *item_rows, *item_tile, *row_keys, *row_page, *table;
  int32_t *next_item, *num_done;
  uint32_t head_dim;
  int32_t window;  // keys_of_window()
  // Returns the head's own columns.
  template <uint32_t kHeadDim, bool kPadded>
  __device__ uint32_t columns() const {
    return kPadded ? head_dim : kHeadDim;
  }
};

// kHeadDim, here and below, is head_width(). In a kernel that is kPadded, heads have fewer columns in global memory.
// The others are zeros in shared memory: the copy engine fills them, because they lie outside of the tensor.
template <uint32_t kHeadDim>
struct Shape {
  static constexpr uint32_t kUnit = attention_step(kHeadDim) / kAttentionParts, kUnits = kKeys / kUnit;
  static constexpr uint32_t kStep = attention_step(kHeadDim);
  static constexpr uint32_t kHalves = kHeadDim / 64;  // rows of shared memory, of 64 columns, that a row takes
  static constexpr uint32_t kHalfBytes = kKeys * kSwizzledRow;  // of a tile
  static constexpr uint32_t kTileBytes = kHalves * kHalfBytes;
  static constexpr uint32_t kEights = kHeadDim / 8, kUnitEights = kUnit / 8;
};

// An item of a KV head: some rows of a run, and the keys that they see.
struct Item {
  int32_t first_row;      // of the run
  int32_t token, tokens;  // the rows from first_row + token on, so many; 0: there is no item left
  int32_t kv_head;
  int32_t end;   // the last row sees positions below this, and each row before it one less
  int32_t from;  // the first row sees none below this, and each row after it one less; it may be negative
  int32_t page;  // index in the table at which the sequence begins

  Item() = default;
  __device__ Item(const Params& params, uint32_t index) {
    // One KV head after the other: then the items that are computed at once read few keys, which the L2 cache holds.
    const uint32_t i = index % params.num_items;
    kv_head = static_cast<int32_t>(index / params.num_items);
    first_row = params.item_row[i];
    const int32_t num_rows = params.item_rows[i], most = static_cast<int32_t>(kRows / params.group);
    token = params.item_tile[i] * most;
    tokens = min(most, num_rows - token);
    const int32_t last = first_row + num_rows - 1;
    end = params.row_keys[last] - num_rows + token + tokens;
    from = end - tokens + 1 - params.window;
    page = params.row_page[last];
  }
};

template <uint32_t kHeadDim>
struct Storage {
  using S = Shape<kHeadDim>;
  alignas(kSwizzledRows) uint8_t q[S::kTileBytes];
  alignas(kSwizzledRows) uint8_t keys[kStages][S::kTileBytes];
  alignas(kSwizzledRows) uint8_t values[kStages][S::kTileBytes];
  float4 folded[kConsumers][S::kEights][kGroup];
  Item items[kItems];  // the next ones; the last has no rows
  Barrier items_there[kItems], items_free[kItems];
  Barrier q_there, q_free;
  Barrier keys_there[kStages], keys_free[kStages], values_there[kStages], values_free[kStages];
};

// Takes the next item of the launch. All lanes of the warp call it together.
__device__ Item take_item(const Params& params) {
  int32_t index = 0;
  if (threadIdx.x % 32 == 0) index = atomicAdd(params.next_item, 1);
  index = __shfl_sync(~0U, index, 0);
  if (index < static_cast<int32_t>(params.num_items * params.num_kv_heads)) return Item(params, index);
  // The last block to find no item sets the counters back for the next launch.
  if (threadIdx.x % 32 == 0 && atomicAdd(params.num_done, 1) + 1 == static_cast<int32_t>(gridDim.x)) {
    *params.next_item = 0;
    *params.num_done = 0;
  }
  return {};
}

// The units of an item in their order. They begin with the step in which the first key lies that a row of it sees.
template <uint32_t kHeadDim>
class Units {
  using S = Shape<kHeadDim>;

 public:
  __device__ explicit Units(const Item& item)
      : end_(item.end), begin_(max(item.from, 0) & -static_cast<int32_t>(S::kStep)), position_(begin_) {}
  // Whether the units of a tile follow each other within a part, and rows that see positions `from` up to `visible` see
  // all of them.
  __device__ bool are_plain(int32_t from, int32_t visible) const {
    return position_ >= from && position_ + static_cast<int32_t>((S::kUnits - 1) * S::kStep + S::kUnit) <= visible &&
           (position_ == begin_ || !begins());
  }
  __device__ void skip_tile() {
    position_ += (S::kUnits - 1) * S::kStep;
    advance();
  }
  __device__ int32_t position() const { return position_; }  // of the unit's first key; past the end: no unit is left
  __device__ bool is_left() const { return position_ < end_; }
  // Whether the unit is the first of its part.
  __device__ bool begins() const { return position_ < begin_ + static_cast<int32_t>(S::kStep); }
  // Whether the unit is the first of a part after which another one has been walked.
  __device__ bool follows_a_part() const { return begins() && position_ > begin_; }
  __device__ uint32_t count_tiles() const {
    return (static_cast<uint32_t>(end_ - begin_) + S::kUnit * S::kUnits - 1) / (S::kUnit * S::kUnits);
  }
  __device__ void advance() {
    position_ += S::kStep;
    if (position_ < end_) return;
    ++part_;
    position_ =
        part_ < static_cast<int32_t>(kAttentionParts) ? begin_ + part_ * static_cast<int32_t>(S::kUnit) : kNever;
  }

 private:
  int32_t end_, begin_, position_, part_ = 0;
};

using Stage = Turn<kStages>;

// One warp takes items, tells the others, and loads queries.
template <uint32_t kHeadDim>
__device__ void load_queries(const Params& params, Storage<kHeadDim>& storage) {
  using S = Shape<kHeadDim>;
  const bool is_first = threadIdx.x % 32 == 0;
  Turn<kItems> place;
  for (uint32_t q_parity = 1;; q_parity ^= 1, place.advance()) {
    const Item item = take_item(params);
    storage.items_free[place.index].wait(place.parity ^ 1);
    if (is_first) {
      storage.items[place.index] = item;
      storage.items_there[place.index].arrive();
    }
    __syncwarp();
    if (item.tokens == 0) return;
    storage.q_free.wait(q_parity);
    if (!is_first) continue;
    storage.q_there.arrive_and_expect(S::kHalves * kSwizzledRow * params.group * (kRows / params.group));
#pragma unroll
    for (uint32_t half = 0; half < S::kHalves; ++half) {
      copy_box(params.q, static_cast<int32_t>(half * 64), item.kv_head * static_cast<int32_t>(params.group),
               item.first_row + item.token, shared_address(storage.q) + half * S::kHalfBytes, storage.q_there);
    }
  }
}

// Writes the values of a page, of which some row sees only the tokens [first, left). The others may be anything, also
// NaN, and zeros take their place.
template <uint32_t kHeadDim>
__device__ void write_cut_page(const __nv_bfloat16* from, uint32_t columns, int32_t first, int32_t left,
                               uint8_t* page) {
  using S = Shape<kHeadDim>;
  for (uint32_t i = threadIdx.x % 32; i < kPage * S::kEights; i += 32) {
    const uint32_t row = i / S::kEights, piece = i % S::kEights;
    const bool is_there = static_cast<int32_t>(row) >= first && static_cast<int32_t>(row) < left && piece * 8 < columns;
    const uint4 eight = is_there ? *reinterpret_cast<const uint4*>(from + row * columns + piece * 8) : uint4{};
    *reinterpret_cast<uint4*>(page + piece / 8 * S::kHalfBytes + row * kSwizzledRow + (piece % 8 ^ row % 8) * 16) =
        eight;
  }
  show_to_products();
}

// One warp loads the keys of all tiles, another one their values.
template <uint32_t kHeadDim, bool kPadded, bool kValues>
__device__ void load_tiles(const Params& params, Storage<kHeadDim>& storage) {
  using S = Shape<kHeadDim>;
  constexpr uint32_t kUnitPages = S::kUnit / kPage, kPages = kKeys / kPage, kPageBytes = kPage * kSwizzledRow;
  const uint32_t lane = threadIdx.x % 32;
  auto& tiles = kValues ? storage.values : storage.keys;
  Barrier* const there = kValues ? storage.values_there : storage.keys_there;
  Barrier* const free = kValues ? storage.values_free : storage.keys_free;
  const uint32_t columns = params.columns<kHeadDim, kPadded>();
  const int32_t first_row = kValues ? static_cast<int32_t>(params.num_kv_heads * kPage) : 0;
  Stage stage;
  for (Turn<kItems> place;; place.advance()) {
    storage.items_there[place.index].wait(place.parity);
    const Item item = storage.items[place.index];
    __syncwarp();
    if (lane == 0) storage.items_free[place.index].arrive();
    if (item.tokens == 0) return;
    const int32_t row = first_row + item.kv_head * static_cast<int32_t>(kPage);
    for (Units<kHeadDim> units(item); units.is_left(); stage.advance()) {
      // Lane i has page i of the tile.
      int32_t position = kNever;
#pragma unroll
      for (uint32_t u = 0; u < S::kUnits; ++u) {
        if (lane / kUnitPages == u && units.is_left()) {
          position = units.position() + static_cast<int32_t>(lane % kUnitPages * kPage);
        }
        units.advance();
      }
      // Some row sees the tokens [first, left) of the page.
      const int32_t first = item.from - position, left = item.end - position;
      const bool is_seen = left > 0 && first < static_cast<int32_t>(kPage);
      const int32_t block = is_seen ? params.table[item.page + position / static_cast<int32_t>(kPage)] : 0;
      // Other keys of it do no harm: their scores are masked.
      const bool is_whole = first <= 0 && left >= static_cast<int32_t>(kPage);
      const uint32_t loaded = __ballot_sync(~0U, kValues ? is_whole : is_seen);
      const uint32_t cut = __ballot_sync(~0U, kValues && position != kNever && !is_whole);

      uint8_t* const tile = tiles[stage.index];
      Barrier& arrives = there[stage.index];
      free[stage.index].wait(stage.parity ^ 1);
      for (uint32_t pages = cut; pages != 0; pages &= pages - 1) {
        const auto page = static_cast<uint32_t>(__ffs(static_cast<int>(pages)) - 1);
        const auto cut_block = static_cast<size_t>(__shfl_sync(~0U, block, page));
        write_cut_page<kHeadDim>(params.kv_data + cut_block * params.block_stride + static_cast<size_t>(row) * columns,
                                 columns, __shfl_sync(~0U, first, page), __shfl_sync(~0U, left, page),
                                 tile + page * kPageBytes);
      }
      __syncwarp();
      const bool elected = is_elected();
      if (elected) {
        arrives.arrive_and_expect(static_cast<uint32_t>(__popc(loaded)) * S::kHalves * kPageBytes);
      }
#pragma unroll
      for (uint32_t page = 0; page < kPages; ++page) {
        const int32_t page_block = __shfl_sync(~0U, block, page);
        if (!elected || (loaded >> page & 1) == 0) continue;
#pragma unroll
        for (uint32_t half = 0; half < S::kHalves; ++half) {
          copy_box(params.kv, static_cast<int32_t>(half * 64), row, page_block,
                   shared_address(tile) + half * S::kHalfBytes + page * kPageBytes, arrives);
        }
      }
    }
  }
}

}  // namespace tandem::device::cuda::large
