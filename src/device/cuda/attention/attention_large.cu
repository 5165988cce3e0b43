// The kernel of attention for large items on Hopper (compute capability 9.0): many rows, whose keys are read once for
// 128 rows, products by warpgroups, copies by TMA. Its sums are those of attention_softmax.cuh, so its bits are those
// of attention.cu: a product of a warpgroup has the bits of the same product of a warp.
//
// An item walks the units of part 0, then those of part 1, and so on: so it needs one set of sums at a time, and folds
// them where a part ends. Four units of 32 keys (two of 64) are a tile of 128 keys, whatever parts they are of.
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "device/block.h"
#include "device/cuda/attention/attention.h"
#include "device/cuda/attention/attention_softmax.cuh"
#include "device/cuda/gpu_limits.h"
#include "device/cuda/tensor_map.h"
#include "device/cuda/warpgroups.cuh"

namespace tandem::device::cuda {
namespace {

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

// A consumer's half of an item: 64 rows, of which a thread holds two, in eights of columns: row lane / 4 of its warp in
// elements 0 and 1 of each, row lane / 4 + 8 in elements 2 and 3.
template <uint32_t kHeadDim, bool kPadded>
class Consumer {
  using S = Shape<kHeadDim>;
  // A part's reference for a row, and this lane's sum of its weights.
  struct Sums {
    float reference, weights;
  };

 public:
  __device__ Consumer(const Params& params, Storage<kHeadDim>& storage)
      : params_(params),
        storage_(storage),
        group_(threadIdx.x / kGroup),
        lane_(threadIdx.x % 32),
        first_(threadIdx.x / 32 * 16 + lane_ / 4) {}

  __device__ void compute_items() {
    // The two consumers take turns at the tensor cores: while one has them, the other computes weights.
    if (group_ == 1) end_turn();
    uint32_t q_parity = 0;
    for (Turn<kItems> place;; place.advance()) {
      storage_.items_there[place.index].wait(place.parity);
      const Item item = storage_.items[place.index];
      __syncwarp();
      release(storage_.items_free[place.index]);
      if (item.tokens == 0) break;
      compute(item, q_parity);
      q_parity ^= 1;
    }
    if (group_ == 0) begin_turn();
  }

 private:
  __device__ void begin_turn() { meet(1 + group_, kConsumers * kGroup); }
  __device__ void end_turn() { note(1 + (group_ ^ 1), kConsumers * kGroup); }
  // Returns a number that is the same in all lanes, so that it is kept once for all.
  __device__ static uint32_t uniform(uint32_t x) { return __shfl_sync(~0U, x, 0); }
  __device__ void release(Barrier& free) {
    if (lane_ == 0) free.arrive();
  }

  __device__ void release_values() {
    release(storage_.values_free[values_.index]);
    values_.advance();
  }

  // Queues scores = q k^T of a tile.
  __device__ void multiply_keys() {
    const Operand q(uniform(shared_address(storage_.q) + group_ * 64 * kSwizzledRow));
    const Operand keys(uniform(shared_address(storage_.keys[keys_.index])));
    begin_products();
#pragma unroll
    for (uint32_t k = 0; k < kHeadDim / 16; ++k) {
      const uint32_t at = k / 4 * S::kHalfBytes + k % 4 * 32;
      if (k == 0) multiply_rows<false>(scores_, q.at(at), keys.at(at));
      if (k > 0) multiply_rows<true>(scores_, q.at(at), keys.at(at));
    }
    close_products();
  }

  // Returns the values of the tile whose weights are there.
  __device__ Operand values() const {
    return Operand(uniform(shared_address(storage_.values[values_.index])), S::kHalfBytes);
  }

  // Takes the keys out of the scores of a unit that a row does not see.
  __device__ void mask(uint32_t unit, int32_t position) {
    if (position + static_cast<int32_t>(S::kUnit) <= first_visible_ && position >= last_from()) return;
    // A row sees `window` positions before visible_. One comparison of numbers without a sign asks for both ends.
    const auto window = static_cast<uint32_t>(params_.window);
    uint32_t begin[2];
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      begin[j] = static_cast<uint32_t>(position) + 2 * (lane_ % 4) + window - static_cast<uint32_t>(visible_[j]);
    }
#pragma unroll
    for (uint32_t i = 0; i < S::kUnitEights; ++i) {
#pragma unroll
      for (uint32_t r = 0; r < 4; ++r) {
        if (begin[r / 2] + 8 * i + r % 2 >= window) scores_[unit * S::kUnitEights + i][r] = -INFINITY;
      }
    }
  }

  // Returns the position from which on all rows of this half see keys.
  __device__ int32_t last_from() const { return last_visible_ - params_.window; }

  // Turns the scores of a tile into weights, in float32. Sets by what the sums are to be multiplied before each unit.
  __device__ void weigh(Units<kHeadDim>& units) {
#pragma unroll
    for (uint32_t i = 0; i < kKeys / 8; ++i) {
#pragma unroll
      for (uint32_t r = 0; r < 4; ++r) scores_[i][r] = finite_or_nan(scores_[i][r]);
    }
    num_units_ = S::kUnits;
    folds_ = 0;
    if (units.are_plain(last_from(), first_visible_)) {
      units.skip_tile();
    } else {
      num_units_ = 0;
#pragma unroll
      for (uint32_t u = 0; u < S::kUnits; ++u) {
        if (units.is_left()) ++num_units_;
        if (units.is_left() && units.follows_a_part()) folds_ |= 1U << u;
        mask(u, units.position());
        units.advance();
      }
    }

    // The whole warpgroup adds the values of the tile in one piece, or it does not.
    in_pieces_ = any_of(3 + group_, kGroup, moves_any() || folds_ != 0 || num_units_ < S::kUnits);
    if (in_pieces_) {
      weigh_and_move();
    } else {
#pragma unroll
      for (uint32_t u = 0; u < S::kUnits; ++u) weigh_unit(u);
    }
  }

  // Returns whether a reference moves within the tile.
  __device__ bool moves_any() const {
    bool moves = false;
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      moves |= largest_of(0, kKeys / 8, j) * params_.scale_log2 > reference_[j] + kMostAbove;
    }
    return moves;
  }

  // Returns the largest score of a row in some eights of keys.
  __device__ float largest_of(uint32_t begin, uint32_t end, uint32_t j) const {
    float most[2] = {scores_[begin][2 * j], scores_[begin][2 * j + 1]};
#pragma unroll
    for (uint32_t i = begin + 1; i < end; ++i) {
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) most[r] = fmaxf(most[r], scores_[i][2 * j + r]);
    }
    return maximum_of_four(fmaxf(most[0], most[1]));
  }

  __device__ void weigh_unit(uint32_t unit) {
    const uint32_t begin = unit * S::kUnitEights;
    float pairs[2][S::kUnitEights];
#pragma unroll
    for (uint32_t i = 0; i < S::kUnitEights; ++i) {
      float(&eight)[4] = scores_[begin + i];
#pragma unroll
      for (uint32_t r = 0; r < 4; ++r) eight[r] = weight_of(eight[r], params_.scale_log2, reference_[r / 2]);
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) pairs[j][i] = eight[2 * j] + eight[2 * j + 1];
    }
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) sum_[j] += sum_of_pairs(pairs[j]);
  }

  // Weighs the keys of a tile unit by unit, since references may move.
  __device__ void weigh_and_move() {
    rescales_ = 0;
    float most[S::kUnits][2];
#pragma unroll
    for (uint32_t u = 0; u < S::kUnits; ++u) {
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
        most[u][j] = largest_of(u * S::kUnitEights, (u + 1) * S::kUnitEights, j) * params_.scale_log2;
      }
    }
#pragma unroll
    for (uint32_t u = 0; u < S::kUnits; ++u) {
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
        before_[u][j] = {reference_[j], sum_[j]};
        if ((folds_ >> u & 1) != 0) reference_[j] = kNoKey, sum_[j] = 0.0F;
        factor_[u][j] = move_reference(reference_[j], most[u][j]);
        sum_[j] *= factor_[u][j];
      }
      if (__any_sync(~0U, factor_[u][0] != 1.0F || factor_[u][1] != 1.0F)) rescales_ |= 1U << u;
      weigh_unit(u);
    }
  }

  __device__ void round_weights() {
#pragma unroll
    for (uint32_t i = 0; i < kKeys / 8; ++i) {
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(scores_[i][2 * j], scores_[i][2 * j + 1]);
        weights_[i / 2][i % 2 * 2 + j] = reinterpret_cast<const uint32_t&>(pair);
      }
    }
  }

  __device__ float4& folded_values(uint32_t eight) { return storage_.folded[group_][eight][threadIdx.x % kGroup]; }
  __device__ Folded::Factors fold_sums(uint32_t j, const Sums& part) {
    return folded_[j].fold(part.reference, sum_of_four(part.weights));
  }

  // Folds the sums of the part that ends before a unit. Its sums of values become 0.
  __device__ void fold(uint32_t unit) {
    Folded::Factors factors[2];
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      Sums part = before_[0][j];
#pragma unroll
      for (uint32_t u = 1; u < S::kUnits; ++u) {
        if (u == unit) part = before_[u][j];
      }
      factors[j] = fold_sums(j, part);
    }
#pragma unroll
    for (uint32_t i = 0; i < S::kEights; ++i) {
      float4 values = has_folded_ ? folded_values(i) : float4{};
      values.x = values.x * factors[0].folded + out_[i][0] * factors[0].part;
      values.y = values.y * factors[0].folded + out_[i][1] * factors[0].part;
      values.z = values.z * factors[1].folded + out_[i][2] * factors[1].part;
      values.w = values.w * factors[1].folded + out_[i][3] * factors[1].part;
      folded_values(i) = values;
#pragma unroll
      for (uint32_t r = 0; r < 4; ++r) out_[i][r] = 0.0F;
    }
    has_folded_ = true;
  }

  __device__ void rescale(uint32_t unit) {
    float factor[2] = {factor_[0][0], factor_[0][1]};
#pragma unroll
    for (uint32_t u = 1; u < S::kUnits; ++u) {
      if (u == unit) factor[0] = factor_[u][0], factor[1] = factor_[u][1];
    }
#pragma unroll
    for (uint32_t i = 0; i < S::kEights; ++i) {
#pragma unroll
      for (uint32_t r = 0; r < 4; ++r) out_[i][r] *= factor[r / 2];
    }
  }

  // Adds the weighted values of a tile unit by unit, with what happens to the sums between units.
  __device__ void add_in_pieces() {
    const Operand values = this->values();
#pragma unroll 1
    for (uint32_t unit = 0; unit < num_units_; ++unit) {
      if ((folds_ >> unit & 1) != 0) fold(unit);
      if ((rescales_ >> unit & 1) != 0) rescale(unit);
      constexpr uint32_t kSixteens = S::kUnit / 16;
      uint32_t weights[kSixteens][4];
#pragma unroll
      for (uint32_t s = 0; s < kSixteens; ++s) {
#pragma unroll
        for (uint32_t r = 0; r < 4; ++r) {
          weights[s][r] = weights_[s][r];
#pragma unroll
          for (uint32_t u = 1; u < S::kUnits; ++u) {
            if (u == unit) weights[s][r] = weights_[u * kSixteens + s][r];
          }
        }
      }
      pin(out_);
      begin_products();
#pragma unroll
      for (uint32_t s = 0; s < kSixteens; ++s) {
        multiply_columns(out_, weights[s], values.at((unit * kSixteens + s) * 16 * kSwizzledRow));
      }
      close_products();
      wait_for_products<0>();
      pin(out_);
    }
  }

  // Queues the weighted values of a tile.
  __device__ void add_in_one_piece() {
    const Operand values = this->values();
    pin(out_);
    begin_products();
#pragma unroll
    for (uint32_t s = 0; s < kKeys / 16; ++s) {
      multiply_columns(out_, weights_[s], values.at(s * 16 * kSwizzledRow));
    }
    close_products();
  }

  __device__ void compute(const Item& item, uint32_t q_parity) {
    const int32_t shift = item.end - item.tokens + 1;  // keys that the item's first row sees
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      visible_[j] = min(item.end, shift + static_cast<int32_t>((first_ + 8 * j) / params_.group));
      folded_[j] = {};
      reference_[j] = kNoKey;
      sum_[j] = 0.0F;
    }
    first_visible_ = shift + static_cast<int32_t>(group_ * 64 / params_.group);
    last_visible_ = min(item.end, shift + static_cast<int32_t>((group_ * 64 + 63) / params_.group));
    has_folded_ = false;
#pragma unroll
    for (uint32_t i = 0; i < S::kEights; ++i) {
#pragma unroll
      for (uint32_t r = 0; r < 4; ++r) out_[i][r] = 0.0F;
    }

    Units<kHeadDim> units(item);
    storage_.q_there.wait(q_parity);
    bool is_queued = false;  // whether the values of the last tile are still to be added
    for (uint32_t tiles_left = units.count_tiles(); tiles_left > 0; --tiles_left) {
      storage_.keys_there[keys_.index].wait(keys_.parity);
      if (is_queued) {
        storage_.values_there[values_.index].wait(values_.parity);
        begin_turn();
        multiply_keys();
        add_in_one_piece();
        end_turn();
        wait_for_products<1>();
      } else {
        begin_turn();
        multiply_keys();
        end_turn();
        wait_for_products<0>();
      }
      pin(scores_);
      release(storage_.keys_free[keys_.index]);
      if (tiles_left == 1) release(storage_.q_free);
      keys_.advance();
      weigh(units);
      wait_for_products<0>();
      pin(out_);
      if (is_queued) release_values();
      round_weights();
      is_queued = !in_pieces_;
      if (is_queued) continue;
      storage_.values_there[values_.index].wait(values_.parity);
      add_in_pieces();
      release_values();
    }
    if (is_queued) {
      storage_.values_there[values_.index].wait(values_.parity);
      add_in_one_piece();
      wait_for_products<0>();
      pin(out_);
      release_values();
    }
    write(item);
  }

  __device__ void write(const Item& item) {
    const uint32_t columns = params_.template columns<kHeadDim, kPadded>();
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      const uint32_t packed = first_ + 8 * j, token = packed / params_.group;
      const Folded::Factors factors = fold_sums(j, {reference_[j], sum_[j]});
      if (static_cast<int32_t>(token) >= item.tokens) continue;
      const float reciprocal = folded_[j].reciprocal();
      const size_t row = static_cast<size_t>(item.first_row + item.token) + token;
      const size_t head =
          (row * params_.num_kv_heads + static_cast<uint32_t>(item.kv_head)) * params_.group + packed % params_.group;
      if (params_.lse != nullptr && lane_ % 4 == 0) params_.lse[head] = folded_[j].log_sum();
      auto* const to = reinterpret_cast<__nv_bfloat162*>(params_.o + head * columns) + lane_ % 4;
#pragma unroll
      for (uint32_t i = 0; i < S::kEights; ++i) {
        if (kPadded && 8 * i >= columns) break;
        const float4 values = has_folded_ ? folded_values(i) : float4{};
        const float first = j == 0 ? values.x : values.z, second = j == 0 ? values.y : values.w;
        to[4 * i] =
            __floats2bfloat162_rn(finished(first * factors.folded + out_[i][2 * j] * factors.part, reciprocal),
                                  finished(second * factors.folded + out_[i][2 * j + 1] * factors.part, reciprocal));
      }
    }
  }

  const Params& params_;
  Storage<kHeadDim>& storage_;
  const uint32_t group_, lane_, first_;
  Stage keys_, values_;

  float scores_[kKeys / 8][4], out_[S::kEights][4];
  uint32_t weights_[kKeys / 16][4];
  float reference_[2], sum_[2];
  Folded folded_[2];
  Sums before_[S::kUnits][2];  // of the part that ends before a unit, or goes on
  float factor_[S::kUnits][2];
  uint32_t num_units_;         // of the tile
  uint32_t folds_, rescales_;  // units, as bits, before which the sums are folded, or rescaled
  bool in_pieces_, has_folded_;
  int32_t visible_[2];                    // keys that a row sees, and those before its window
  int32_t first_visible_, last_visible_;  // of the first and the last row of this half
};

template <uint32_t kHeadDim, bool kPadded>
__global__ __launch_bounds__(kThreads, 1) void large_attention_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(kSwizzledRows) uint8_t shared_memory[];
  auto& storage = reinterpret_cast<Storage<kHeadDim>&>(shared_memory);
  constexpr uint32_t kWarps = kConsumers * kGroup / 32;
  if (threadIdx.x == 0) {
    storage.q_there.init(1);
    storage.q_free.init(kWarps);
    for (uint32_t i = 0; i < kItems; ++i) {
      storage.items_there[i].init(1);
      storage.items_free[i].init(kWarps + 2);
    }
    for (uint32_t s = 0; s < kStages; ++s) {
      storage.keys_there[s].init(1);
      storage.values_there[s].init(1);
      storage.keys_free[s].init(kWarps);
      storage.values_free[s].init(kWarps);
    }
    show_to_products();
  }
  __syncthreads();
  if (threadIdx.x / kGroup == kConsumers) {
    give_registers<40>();
    const uint32_t warp = threadIdx.x % kGroup / 32;
    if (warp == 0) load_queries(params, storage);
    if (warp == 1) load_tiles<kHeadDim, kPadded, false>(params, storage);
    if (warp == 2) load_tiles<kHeadDim, kPadded, true>(params, storage);
  } else {
    take_registers<232>();
    Consumer<kHeadDim, kPadded>(params, storage).compute_items();
  }
}

template <uint32_t kHeadDim, bool kPadded>
cudaError_t launch_kernel(const Params& params, cudaStream_t stream) {
  constexpr int kSharedBytes = sizeof(Storage<kHeadDim>);
  static_assert(kSharedBytes <= large_attention_shared_bytes(kHeadDim));
  const cudaError_t status = cudaFuncSetAttribute(large_attention_kernel<kHeadDim, kPadded>,
                                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (status != cudaSuccess) return status;
  const auto blocks =
      std::min(static_cast<uint32_t>(gpu_limits().multiprocessors), params.num_items * params.num_kv_heads);
  large_attention_kernel<kHeadDim, kPadded><<<blocks, kThreads, kSharedBytes, stream>>>(params);
  return cudaGetLastError();
}

template <uint32_t kHeadDim>
cudaError_t launch(const Params& params, cudaStream_t stream) {
  return params.head_dim == kHeadDim ? launch_kernel<kHeadDim, false>(params, stream)
                                     : launch_kernel<kHeadDim, true>(params, stream);
}

}  // namespace

bool computes_large_items(int64_t head_dim) { return runs_large_attention(gpu_limits(), head_dim); }

cudaError_t attention_of_large_items(const AttentionForward& call, cudaStream_t stream) {
  const AttentionWork& work = call.work;
  const PagedKv& kv = call.kv;
  const auto heads = static_cast<uint64_t>(call.num_heads), kv_heads = static_cast<uint64_t>(kv.num_kv_heads),
             head_dim = static_cast<uint64_t>(kv.head_dim), group = heads / kv_heads;
  Params params = {.q = {},
                   .kv = {},
                   .kv_data = static_cast<const __nv_bfloat16*>(kv.data),
                   .block_stride = static_cast<size_t>(kv.block_stride),
                   .o = static_cast<__nv_bfloat16*>(call.out_THK),
                   .lse = call.lse_TH,
                   .scale_log2 = static_cast<float>(kLog2E / std::sqrt(static_cast<double>(head_dim))),
                   .group = static_cast<uint32_t>(group),
                   .num_kv_heads = static_cast<uint32_t>(kv_heads),
                   .num_items = static_cast<uint32_t>(work.num_large_items),
                   .item_row = call.words + work.item_row,
                   .item_rows = call.words + work.item_rows,
                   .item_tile = call.words + work.item_tile,
                   .row_keys = call.words + work.row_keys,
                   .row_page = call.words + work.row_page,
                   .table = call.words + work.table,
                   .next_item = call.words + work.counters,
                   .num_done = call.words + work.counters + 1,
                   .head_dim = static_cast<uint32_t>(head_dim),
                   .window = keys_of_window(call.window)};
  const auto num_rows = static_cast<uint64_t>(work.num_rows), num_blocks = static_cast<uint64_t>(kv.num_blocks);
  const bool is_described =
      describe_tensor(params.q, call.q_THK, {head_dim, heads, num_rows}, {head_dim * 2, heads * head_dim * 2},
                      {64, static_cast<uint32_t>(group), kRows / static_cast<uint32_t>(group)}) &&
      describe_tensor(params.kv, kv.data, {head_dim, 2 * kv_heads * kPage, num_blocks},
                      {head_dim * 2, static_cast<uint64_t>(kv.block_stride) * 2}, {64, kPage, 1});
  if (!is_described) return cudaErrorInvalidValue;
  switch (head_width(kv.head_dim)) {
    case 64: return launch<64>(params, stream);
    case 128: return launch<128>(params, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace tandem::device::cuda
