// The kernels of attention_grad.h. attention_grad_kernel computes items: two warpgroups walk the tiles of 64 rows that
// see the item's block of keys. For a tile they compute, with keys as lines of the products,
//   scores [keys, rows] = k q^T,  dweights = v dout^T,  weights = exp2(scores), dscores = weights (dweights - d),
//   dv += weights dout,  dk += dscores q,  and dq [rows, K] = dscores^T k.
// Sums of keys stay in registers, 64 keys and 128 columns in each warpgroup: of 128 keys each has half of the keys;
// heads of 256 columns have blocks of 64 keys, and each warpgroup half of the columns. dq goes through shared memory to
// a warp that waits until the blocks before have added theirs, and lets the copy engine add it to global memory. The
// last products of a tile run while the next tile's scores are on their way.
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "device/cuda/attention/attention.h"
#include "device/cuda/attention/attention_grad.h"
#include "device/cuda/attention/attention_softmax.cuh"
#include "device/cuda/gpu_limits.h"
#include "device/cuda/tensor_map.h"
#include "device/cuda/warpgroups.cuh"

namespace tandem::device::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr uint32_t kRows = kGradRows;
constexpr uint32_t kStages = 2, kItems = 2;       // tiles of rows, and items, in shared memory
constexpr uint32_t kGroup = 128, kConsumers = 2;  // threads of a warpgroup; warpgroups that compute
constexpr uint32_t kThreads = (kConsumers + 1) * kGroup;
constexpr uint32_t kRowTermsBytes = 2 * kRows * sizeof(float);
static_assert(kRows == 64);

struct Params {
  CUtensorMap q, dout;  // [K, H, T], boxes of 64 x 1 x kRows
  CUtensorMap k, v;     // [K, G, n], boxes of 64 x 1 x grad_keys()
  const bf16 *q_data, *dout_data, *k_data, *v_data;
  bf16 *dk, *dv;
  float scale, scale_log2;
  uint32_t group, num_kv_heads, head_dim;
  int32_t window, num_items;
  const GradSegment* segments;
  const GradItem* items;
  float* row_terms;     // [tiles, H, 2, kRows]: the logarithm of a row's sum, in powers of two, and d
  float* dq;            // [tiles, H, head_width() / 8, kGroup, 4], as consumers hold it
  uint32_t* num_added;  // [tiles, H, parts of dq]: blocks that have added to the part
  int32_t* next_item;
  __device__ uint32_t num_heads() const { return group * num_kv_heads; }
};

// kHeadDim, here and below, is head_width(). Heads may have fewer columns in global memory: the others are zeros in
// shared memory.
template <uint32_t kHeadDim>
struct Shape {
  static constexpr uint32_t kKeys = static_cast<uint32_t>(grad_keys(kHeadDim));
  static constexpr bool kCutsKeys = kKeys == kConsumers * 64;  // among the consumers, or else columns
  static constexpr uint32_t kHalves = kHeadDim / 64;           // rows of shared memory, of 64 columns, that a row takes
  static constexpr uint32_t kKeyHalf = kKeys * kSwizzledRow, kRowHalf = kRows * kSwizzledRow;  // bytes
  static constexpr uint32_t kKeyBytes = kHalves * kKeyHalf, kRowBytes = kHalves * kRowHalf;
  static constexpr uint32_t kEights = kHeadDim / 8;
  static constexpr uint32_t kSumColumns = kCutsKeys ? kHeadDim : kHeadDim / kConsumers;  // of a consumer's keys
  // dq goes to memory in parts of as many columns as a consumer has shared memory for.
  static constexpr uint32_t kColumns = kHeadDim / kConsumers;  // of dq that a consumer computes
  static constexpr uint32_t kParts = static_cast<uint32_t>(grad_parts(kHeadDim));
  static constexpr uint32_t kPartEights = kHeadDim / 8 / kParts, kPartFloats = kRows * kHeadDim / kParts;
  static constexpr uint32_t kPasses = kParts / kConsumers;  // parts of a consumer, one after the other
  static constexpr uint32_t kDqPlaces = kCutsKeys ? 2 : 1;  // parts of each consumer in shared memory
  static constexpr uint32_t kDouts = kCutsKeys ? kStages : 1;
};

// A block of keys and the tiles that it walks, of one query head after the other.
template <uint32_t kKeys>
struct Item {
  GradSegment segment;
  int32_t kv_head;  // -1: there is no item left
  int32_t block;
  int32_t first_tile, num_tiles;  // in the segment
  GradOrder order;

  Item() = default;
  __device__ Item(const Params& params, const GradItem& item)
      : segment(params.segments[item.segment]), kv_head(item.kv_head), block(item.block), order(item.order) {
    const GradView view = this->view(params);
    first_tile = view.first_tile(block);
    num_tiles = max(0, view.end_tile(block) - first_tile);
  }
  __device__ GradView view(const Params& params) const { return {segment.rows, segment.keys, params.window, kKeys}; }
  __device__ int32_t first_key() const { return block * static_cast<int32_t>(kKeys); }
  __device__ int32_t num_keys() const { return min(static_cast<int32_t>(kKeys), segment.keys - first_key()); }
};

// The tiles of an item, in their order.
struct Walk {
  int32_t head, tile, left;  // tiles of this head that are left, this one among them
  int32_t steps;             // that are left, this one among them

  template <uint32_t kKeys>
  __device__ Walk(const Params& params, const Item<kKeys>& item)
      : head(item.kv_head * static_cast<int32_t>(params.group)),
        steps(item.num_tiles * static_cast<int32_t>(params.group)) {
    begin(item);
  }
  template <uint32_t kKeys>
  __device__ void advance(const Item<kKeys>& item) {
    --steps;
    if (--left > 0) {
      tile += item.order == GradOrder::kDescending ? 1 : -1;
    } else {
      ++head;
      begin(item);
    }
  }

 private:
  template <uint32_t kKeys>
  __device__ void begin(const Item<kKeys>& item) {
    tile = item.order == GradOrder::kDescending ? item.first_tile : item.first_tile + item.num_tiles - 1;
    left = item.num_tiles;
  }
};

template <uint32_t kHeadDim>
struct Storage {
  using S = Shape<kHeadDim>;
  alignas(kSwizzledRows) uint8_t keys[S::kKeyBytes];
  alignas(kSwizzledRows) uint8_t values[S::kKeyBytes];
  alignas(kSwizzledRows) uint8_t queries[kStages][S::kRowBytes];
  alignas(kSwizzledRows) uint8_t douts[S::kDouts][S::kRowBytes];
  // [keys, rows], of this tile and of the one before. Consumers that cut keys have weights in registers.
  alignas(kSwizzledRows) uint8_t weights[S::kCutsKeys ? 0 : 2][S::kKeys * kSwizzledRow];
  alignas(kSwizzledRows) uint8_t dscores[2][S::kKeys * kSwizzledRow];
  alignas(128) float4 dq[S::kDqPlaces][kConsumers][S::kPartEights][kGroup];
  alignas(128) float row_terms[kStages][2][kRows];
  Item<S::kKeys> items[kItems];
  Barrier items_there[kItems], items_free[kItems];
  Barrier keys_there, values_there, keys_free;
  Barrier queries_there[kStages], queries_free[kStages], douts_there[S::kDouts], douts_free[S::kDouts];
  Barrier dq_there[S::kDqPlaces][kConsumers], dq_free[S::kDqPlaces][kConsumers];
};

// Writes rows that do not fill a box, and zeros in the place of those that are missing. All lanes of a warp call it.
template <uint32_t kHeadDim, uint32_t kBoxRows>
__device__ void write_cut_box(const bf16* from, size_t stride, int32_t rows, uint32_t columns, uint8_t* to) {
  constexpr uint32_t kEights = kHeadDim / 8;
#pragma unroll 8
  for (uint32_t i = threadIdx.x % 32; i < kBoxRows * kEights; i += 32) {
    const uint32_t row = i / kEights, piece = i % kEights;
    const bool is_there = static_cast<int32_t>(row) < rows && piece * 8 < columns;
    const uint4 eight = is_there ? *reinterpret_cast<const uint4*>(from + row * stride + piece * 8) : uint4{};
    *reinterpret_cast<uint4*>(to + (piece / 8 * kBoxRows + row) * kSwizzledRow + (piece % 8 ^ row % 8) * 16) = eight;
  }
  show_to_products();
  __syncwarp();
}

// Loads kBoxRows rows of a head, of which `rows` are there, and announces them. All lanes of a warp call it.
template <uint32_t kHeadDim, uint32_t kBoxRows>
__device__ void load_box(const CUtensorMap& tensor, const bf16* data, int32_t first_row, int32_t rows, int32_t head,
                         uint32_t num_heads, uint32_t columns, uint8_t* to, Barrier& arrives, uint32_t more_bytes = 0) {
  using S = Shape<kHeadDim>;
  const bool is_whole = rows >= static_cast<int32_t>(kBoxRows);
  if (!is_whole) {
    const size_t stride = static_cast<size_t>(num_heads) * columns;
    write_cut_box<kHeadDim, kBoxRows>(
        data + static_cast<size_t>(first_row) * stride + static_cast<size_t>(head) * columns, stride, rows, columns,
        to);
  }
  if (!is_elected()) return;
  arrives.arrive_and_expect((is_whole ? S::kHalves * kBoxRows * kSwizzledRow : 0) + more_bytes);
  if (!is_whole) return;
#pragma unroll
  for (uint32_t half = 0; half < S::kHalves; ++half) {
    copy_box(tensor, static_cast<int32_t>(half * 64), head, first_row,
             shared_address(to) + half * kBoxRows * kSwizzledRow, arrives);
  }
}

// One warp takes items, tells the others, and loads what they need.
template <uint32_t kHeadDim>
__device__ void load_items(const Params& params, Storage<kHeadDim>& storage) {
  const uint32_t lane = threadIdx.x % 32;
  Turn<kItems> place;
  using S = Shape<kHeadDim>;
  Turn<kStages> stage;
  Turn<S::kDouts> dout;
  Turn<1> keys;
  for (;; place.advance()) {
    int32_t index = 0;
    if (lane == 0) index = atomicAdd(params.next_item, 1);
    index = __shfl_sync(~0U, index, 0);
    storage.items_free[place.index].wait(place.parity ^ 1);
    __syncwarp();
    auto& item = storage.items[place.index];
    if (lane == 0) {
      item.kv_head = -1;
      if (index < params.num_items) item = Item<S::kKeys>(params, params.items[index]);
      storage.items_there[place.index].arrive();
    }
    __syncwarp();
    if (item.kv_head < 0) return;
    if (item.num_tiles == 0) continue;
    const int32_t key = item.segment.key + item.first_key();
    storage.keys_free.wait(keys.parity ^ 1);
    keys.advance();
    load_box<kHeadDim, S::kKeys>(params.k, params.k_data, key, item.num_keys(), item.kv_head, params.num_kv_heads,
                                 params.head_dim, storage.keys, storage.keys_there);
    bool is_first = true;
    for (Walk walk(params, item); walk.steps > 0;
         walk.advance(item), stage.advance(), dout.advance(), is_first = false) {
      const int32_t row = walk.tile * static_cast<int32_t>(kRows), rows = item.segment.rows - row;
      storage.queries_free[stage.index].wait(stage.parity ^ 1);
      load_box<kHeadDim, kRows>(params.q, params.q_data, item.segment.row + row, rows, walk.head, params.num_heads(),
                                params.head_dim, storage.queries[stage.index], storage.queries_there[stage.index],
                                kRowTermsBytes);
      if (is_elected()) {
        const auto tile = static_cast<size_t>(item.segment.tile + walk.tile);
        copy_bytes(params.row_terms + (tile * params.num_heads() + static_cast<uint32_t>(walk.head)) * 2 * kRows,
                   kRowTermsBytes, shared_address(storage.row_terms[stage.index]), storage.queries_there[stage.index]);
      }
      __syncwarp();
      if (is_first) {
        load_box<kHeadDim, S::kKeys>(params.v, params.v_data, key, item.num_keys(), item.kv_head, params.num_kv_heads,
                                     params.head_dim, storage.values, storage.values_there);
      }
      storage.douts_free[dout.index].wait(dout.parity ^ 1);
      load_box<kHeadDim, kRows>(params.dout, params.dout_data, item.segment.row + row, rows, walk.head,
                                params.num_heads(), params.head_dim, storage.douts[dout.index],
                                storage.douts_there[dout.index]);
    }
  }
}

// Waits until so many blocks have added, and shows what they wrote to the copy engine.
__device__ void wait_for_others(const uint32_t* num_added, uint32_t wanted) {
  uint32_t seen;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(num_added) : "memory");
  } while (seen != wanted);
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Adds bytes of shared memory to float32 numbers in global memory, or writes them, and waits until that is done.
// `is_read` is arrived at when the shared memory may be overwritten.
__device__ void add_to(float* to, const void* from, uint32_t bytes, bool is_first, Barrier& is_read) {
  if (is_first) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
                 "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(from)), "r"(bytes)
                 : "memory");
  }
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  is_read.arrive();
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// One warp for each consumer adds what it has computed of dq, after the blocks that come before.
template <uint32_t kHeadDim>
__device__ void add_dq(const Params& params, Storage<kHeadDim>& storage, uint32_t consumer) {
  using S = Shape<kHeadDim>;
  const bool is_first_lane = threadIdx.x % 32 == 0;
  Turn<S::kDqPlaces> dq;
  for (Turn<kItems> place;; place.advance()) {
    storage.items_there[place.index].wait(place.parity);
    const auto& item = storage.items[place.index];
    if (item.kv_head < 0) return;
    for (Walk walk(params, item); walk.steps > 0; walk.advance(item)) {
      const size_t tile =
          static_cast<size_t>(item.segment.tile + walk.tile) * params.num_heads() + static_cast<uint32_t>(walk.head);
      const auto before = static_cast<uint32_t>(item.view(params).num_before(item.block, walk.tile, item.order));
      for (uint32_t pass = 0; pass < S::kPasses; ++pass, dq.advance()) {
        if (is_first_lane) {
          const size_t part = tile * S::kParts + consumer * S::kPasses + pass;
          uint32_t* const num_added = params.num_added + part;
          if (before > 0) wait_for_others(num_added, before);
          storage.dq_there[dq.index][consumer].wait(dq.parity);
          add_to(params.dq + part * S::kPartFloats, storage.dq[dq.index][consumer], S::kPartFloats * sizeof(float),
                 before == 0, storage.dq_free[dq.index][consumer]);
          asm volatile("fence.proxy.async.global;" ::: "memory");
          asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(num_added), "r"(before + 1) : "memory");
        }
        __syncwarp();
      }
    }
    __syncwarp();
    if (is_first_lane) storage.items_free[place.index].arrive();
  }
}

__device__ uint32_t rounded(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return reinterpret_cast<const uint32_t&>(pair);
}

// The base of both kinds of consumers, with what both do. A consumer has 64 keys, of which a thread holds two, in
// eights of rows, or of columns: key lane / 4 of its warp in elements 0 and 1 of each, key lane / 4 + 8 in elements 2
// and 3.
template <uint32_t kHeadDim>
class Consumer {
 protected:
  using S = Shape<kHeadDim>;
  using KeySums = float[S::kSumColumns / 8][4];  // of keys and columns
  using QuerySums = float[S::kColumns / 8][4];   // of rows and columns

  __device__ Consumer(const Params& params, Storage<kHeadDim>& storage)
      : params_(params),
        storage_(storage),
        group_(uniform(threadIdx.x / kGroup)),
        warp_(uniform(threadIdx.x % kGroup / 32)),
        lane_(threadIdx.x % 32) {}

  __device__ static uint32_t uniform(uint32_t x) { return __shfl_sync(~0U, x, 0); }
  __device__ void release(Barrier& free) {
    if (lane_ == 0) free.arrive();
  }

  // Queues out = keys rows^T, of 64 keys that begin with a line of `keys`, and of so many rows that `out` has.
  template <uint32_t kEights>
  __device__ void multiply(float (&out)[kEights][4], const uint8_t* keys, uint32_t first_key, const uint8_t* rows,
                           uint32_t first_row) {
    const Operand a(shared_address(keys) + first_key * kSwizzledRow),
        b(shared_address(rows) + first_row * kSwizzledRow);
    begin_products();
#pragma unroll
    for (uint32_t half = 0; half < S::kHalves; ++half) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint64_t left = a.at(half * S::kKeyHalf + i * 32), right = b.at(half * S::kRowHalf + i * 32);
        if (half + i == 0) {
          multiply_rows<false>(out, left, right);
        } else {
          multiply_rows<true>(out, left, right);
        }
      }
    }
    close_products();
  }
  // Queues sums [64 keys, columns] += weights [64 keys, rows] rows, both in shared memory.
  __device__ void add(KeySums& sums, const uint8_t* weights, const uint8_t* rows) {
    const Operand a(shared_address(weights) + first_key() * kSwizzledRow),
        b(shared_address(rows) + first_column() / 64 * S::kRowHalf, S::kRowHalf);
#pragma unroll
    for (uint32_t i = 0; i < kRows / 16; ++i) multiply_columns(sums, a.at(i * 32), b.at(i * 16 * kSwizzledRow));
    close_products();
  }
  // Queues dq [rows, columns of this consumer] = dscores^T keys.
  __device__ void multiply_dscores(QuerySums& dq, const uint8_t* dscores) {
    const uint32_t column = group_ * S::kColumns;
    const Operand a(shared_address(dscores)),
        b(shared_address(storage_.keys) + column / 64 * S::kKeyHalf + column % 64 * 2, S::kKeyHalf);
    begin_products();
#pragma unroll
    for (uint32_t i = 0; i < S::kKeys / 16; ++i) {
      const uint32_t further = i * 16 * kSwizzledRow;
      if (i == 0) {
        multiply_terms<false>(dq, a.at(further), b.at(further));
      } else {
        multiply_terms<true>(dq, a.at(further), b.at(further));
      }
    }
    close_products();
  }

  // Turns scores of keys and rows into weights, given the logarithms of the rows, the first row of the tile that they
  // are of, and whether that row, which sees keys up to `seen` beyond the first, or a later one does not see all keys.
  template <uint32_t kEights>
  __device__ void weigh(float (&scores)[kEights][4], const float* logs, int32_t seen) const {
    if (seen < 63 || seen + static_cast<int32_t>(8 * kEights) - 1 >= params_.window) {
      const int32_t end = seen + 1 - static_cast<int32_t>(warp_ * 16 + lane_ / 4);
      weigh<true>(scores, logs, end, end - params_.window);
    } else {
      weigh<false>(scores, logs, 0, 0);
    }
  }
  template <bool kMasked, uint32_t kEights>
  __device__ void weigh(float (&scores)[kEights][4], const float* logs, int32_t end, int32_t from) const {
#pragma unroll
    for (uint32_t i = 0; i < kEights; ++i) {
      const float2 log = *reinterpret_cast<const float2*>(logs + 8 * i + lane_ % 4 * 2);
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e) {
        float weight = power_of_two(__fmaf_rn(scores[i][e], params_.scale_log2, e % 2 == 0 ? -log.x : -log.y));
        if (kMasked) {
          // The key's place, counted from the first row's last key.
          const auto key = static_cast<int32_t>(e / 2 * 8) - static_cast<int32_t>(8 * i + lane_ % 4 * 2 + e % 2);
          if (key >= end || key < from) weight = 0.0F;
        }
        scores[i][e] = weight;
      }
    }
  }
  // Returns how many keys beyond the consumer's first one the first row of tile 0 sees.
  __device__ int32_t seen_of(const Item<S::kKeys>& item) const {
    return item.view(params_).prefix() - item.first_key() - static_cast<int32_t>(first_key());
  }

  // Writes 16 rows of a warp's 16 keys to [keys, rows] in shared memory.
  __device__ void write_square(const uint32_t (&words)[4], uint32_t first_row, uint8_t* to) const {
    const uint32_t key = first_key() + warp_ * 16 + lane_ % 16, piece = first_row / 8 + lane_ / 16;
    const uint32_t address = shared_address(to) + key * kSwizzledRow + (piece ^ key % 8) * 16;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
                 "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  }
  // Writes weights (dweights - d), rounded.
  template <uint32_t kEights>
  __device__ void write_dscores(const float (&weights)[kEights][4], const float (&dweights)[kEights][4], const float* d,
                                uint32_t first_row, uint8_t* to) const {
#pragma unroll
    for (uint32_t i = 0; i < kEights / 2; ++i) {
      uint32_t words[4];
#pragma unroll
      for (uint32_t w = 0; w < 4; ++w) {
        const uint32_t eight = 2 * i + w / 2, e = w % 2 * 2;
        const float2 of_rows = *reinterpret_cast<const float2*>(d + 8 * eight + lane_ % 4 * 2);
        words[w] = rounded(weights[eight][e] * (dweights[eight][e] - of_rows.x),
                           weights[eight][e + 1] * (dweights[eight][e + 1] - of_rows.y));
      }
      write_square(words, first_row + 16 * i, to);
    }
  }

  // Writes a part of dq to shared memory. pass_dq_on() gives it to the warp that adds it, after show_to_products().
  __device__ void write_dq(const QuerySums& dq, uint32_t pass = 0) {
    storage_.dq_free[dq_.index][group_].wait(dq_.parity ^ 1);
#pragma unroll
    for (uint32_t i = 0; i < S::kPartEights; ++i) {
      const float(&eight)[4] = dq[pass * S::kPartEights + i];
      storage_.dq[dq_.index][group_][i][threadIdx.x % kGroup] = make_float4(eight[0], eight[1], eight[2], eight[3]);
    }
  }
  __device__ void pass_dq_on() {
    storage_.dq_there[dq_.index][group_].arrive();
    dq_.advance();
  }

  __device__ void write_sums(const Item<S::kKeys>& item, const KeySums& dk, const KeySums& dv) const {
    write(item, dk, params_.scale, params_.dk);
    write(item, dv, 1.0F, params_.dv);
  }

  // The first of the consumer's keys in the block, and of the columns that it sums of them.
  __device__ uint32_t first_key() const { return S::kCutsKeys ? group_ * 64 : 0; }
  __device__ uint32_t first_column() const { return S::kCutsKeys ? 0 : group_ * S::kSumColumns; }

  const Params& params_;
  Storage<kHeadDim>& storage_;
  const uint32_t group_, warp_, lane_;
  Turn<kStages> stage_;
  Turn<1> keys_;

 private:
  __device__ void write(const Item<S::kKeys>& item, const KeySums& sums, float scale, bf16* out) const {
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      const auto key = static_cast<int32_t>(first_key() + warp_ * 16 + lane_ / 4 + 8 * j);
      if (key >= item.num_keys()) continue;
      const size_t row = static_cast<size_t>(item.segment.key + item.first_key() + key) * params_.num_kv_heads +
                         static_cast<uint32_t>(item.kv_head);
      auto* const to = reinterpret_cast<uint32_t*>(out + row * params_.head_dim + first_column()) + lane_ % 4;
#pragma unroll
      for (uint32_t i = 0; i < S::kSumColumns / 8; ++i) {
        if (first_column() + 8 * i >= params_.head_dim) break;
        to[4 * i] = rounded(sums[i][2 * j] * scale, sums[i][2 * j + 1] * scale);
      }
    }
  }

  Turn<S::kDqPlaces> dq_;
};

// A consumer with half of the keys of a block. Its weights of a tile are registers.
template <uint32_t kHeadDim>
class HalfOfKeys : Consumer<kHeadDim> {
  using Base = Consumer<kHeadDim>;
  using Base::first_key, Base::group_, Base::keys_, Base::release, Base::stage_, Base::storage_;
  using typename Base::KeySums, typename Base::QuerySums, typename Base::S;
  using Square = float[kRows / 8][4];  // of keys and rows

 public:
  __device__ HalfOfKeys(const Params& params, Storage<kHeadDim>& storage) : Base(params, storage) {}

  using Base::write_sums;

  // Adds up an item that has tiles.
  __device__ void sum(const Item<S::kKeys>& item, Walk walk, KeySums& dk, KeySums& dv) {
    Square scores;
    const int32_t first_seen = this->seen_of(item);
    storage_.keys_there.wait(keys_.parity);
    storage_.queries_there[stage_.index].wait(stage_.parity);
    this->multiply(scores, storage_.keys, first_key(), storage_.queries[stage_.index], 0);
    storage_.values_there.wait(keys_.parity);
    keys_.advance();
    compute_dscores<true>(first_seen, walk.tile, scores, dk, dv);
    while (walk.steps > 1) {
      Turn<kStages> next = stage_;
      next.advance();
      QuerySums dq;
      this->multiply_dscores(dq, storage_.dscores[stage_.index]);
      this->add(dk, storage_.dscores[stage_.index], storage_.queries[stage_.index]);
      storage_.queries_there[next.index].wait(next.parity);
      this->multiply(scores, storage_.keys, first_key(), storage_.queries[next.index], 0);
      wait_for_products<2>();
      pin(dq);
      pin(dv);
      release(storage_.douts_free[stage_.index]);
      this->write_dq(dq);
      stage_ = next;
      walk.advance(item);
      compute_dscores<false>(first_seen, walk.tile, scores, dk, dv);
    }
    QuerySums dq;
    this->multiply_dscores(dq, storage_.dscores[stage_.index]);
    this->add(dk, storage_.dscores[stage_.index], storage_.queries[stage_.index]);
    wait_for_products<1>();
    pin(dq);
    pin(dv);
    release(storage_.douts_free[stage_.index]);
    this->write_dq(dq);
    show_to_products();
    this->pass_dq_on();
    wait_for_products<0>();
    pin(dk);
    release(storage_.queries_free[stage_.index]);
    stage_.advance();
  }

 private:
  // Turns the scores of a tile, which are queued, into dscores, in shared memory, and queues its part of dv. Other
  // products that are queued before the scores end.
  template <bool kFirst>
  __device__ __forceinline__ void compute_dscores(int32_t first_seen, int32_t tile, Square& scores, KeySums& dk,
                                                  KeySums& dv) {
    static_assert(kStages == 2);
    const uint32_t now = stage_.index;
    Square dweights;
    storage_.douts_there[now].wait(stage_.parity);
    this->multiply(dweights, storage_.values, first_key(), storage_.douts[now], 0);
    wait_for_products<1>();
    pin(scores);
    if (!kFirst) {
      pin(dk);
      release(storage_.queries_free[now ^ 1]);
    }
    this->weigh(scores, storage_.row_terms[now][0], first_seen + tile * static_cast<int32_t>(kRows));
    uint32_t weights[kRows / 16][4];  // the left side of a product
#pragma unroll
    for (uint32_t i = 0; i < kRows / 8; ++i) {
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) weights[i / 2][i % 2 * 2 + j] = rounded(scores[i][2 * j], scores[i][2 * j + 1]);
    }
    begin_products();
    const Operand rows(shared_address(storage_.douts[now]), S::kRowHalf);
#pragma unroll
    for (uint32_t i = 0; i < kRows / 16; ++i) multiply_columns(dv, weights[i], rows.at(i * 16 * kSwizzledRow));
    close_products();
    wait_for_products<1>();
    pin(dweights);
    this->write_dscores(scores, dweights, storage_.row_terms[now][1], 0, storage_.dscores[now]);
    show_to_products();
    if (!kFirst) this->pass_dq_on();
    meet(1, kConsumers * kGroup);
  }
};

// A consumer with half of the columns. It computes the weights of half of a tile's rows, and both share them.
template <uint32_t kHeadDim>
class HalfOfColumns : Consumer<kHeadDim> {
  using Base = Consumer<kHeadDim>;
  using Base::group_, Base::keys_, Base::release, Base::stage_, Base::storage_;
  using typename Base::KeySums, typename Base::QuerySums, typename Base::S;
  static constexpr uint32_t kOwnRows = kRows / kConsumers;
  using Square = float[kOwnRows / 8][4];  // of keys and rows

 public:
  __device__ HalfOfColumns(const Params& params, Storage<kHeadDim>& storage) : Base(params, storage) {}

  using Base::write_sums;

  // Adds up an item that has tiles.
  __device__ void sum(const Item<S::kKeys>& item, Walk walk, KeySums& dk, KeySums& dv) {
    Square scores, dweights;
    const int32_t first_seen = this->seen_of(item) + static_cast<int32_t>(own_row());
    storage_.keys_there.wait(keys_.parity);
    multiply_queries(scores);
    storage_.values_there.wait(keys_.parity);
    keys_.advance();
    multiply_douts(dweights);
    wait_for_products<0>();
    pin(scores);
    pin(dweights);
    for (; walk.steps > 1; walk.advance(item)) add_tile<true>(first_seen, walk.tile, scores, dweights, dk, dv);
    add_tile<false>(first_seen, walk.tile, scores, dweights, dk, dv);
  }

 private:
  // The first of the rows of a tile whose weights this consumer computes.
  __device__ uint32_t own_row() const { return group_ * kOwnRows; }
  // Queues the scores of the tile whose queries come next.
  __device__ void multiply_queries(Square& scores) {
    storage_.queries_there[stage_.index].wait(stage_.parity);
    this->multiply(scores, storage_.keys, 0, storage_.queries[stage_.index], own_row());
  }
  // Queues the gradients of its weights.
  __device__ void multiply_douts(Square& dweights) {
    storage_.douts_there[0].wait(dout_.parity);
    dout_.advance();
    this->multiply(dweights, storage_.values, 0, storage_.douts[0], own_row());
  }

  // Adds what a tile gives, of which both are there, and computes those of the next tile.
  template <bool kHasNext>
  __device__ __forceinline__ void add_tile(int32_t first_seen, int32_t tile, Square& scores, Square& dweights,
                                           KeySums& dk, KeySums& dv) {
    const uint32_t now = stage_.index;
    this->weigh(scores, storage_.row_terms[now][0] + own_row(), first_seen + tile * static_cast<int32_t>(kRows));
#pragma unroll
    for (uint32_t i = 0; i < kOwnRows / 16; ++i) {
      uint32_t words[4];
#pragma unroll
      for (uint32_t w = 0; w < 4; ++w) {
        words[w] = rounded(scores[2 * i + w / 2][w % 2 * 2], scores[2 * i + w / 2][w % 2 * 2 + 1]);
      }
      this->write_square(words, own_row() + 16 * i, storage_.weights[now]);
    }
    this->write_dscores(scores, dweights, storage_.row_terms[now][1] + own_row(), own_row(), storage_.dscores[now]);
    show_to_products();
    meet(1, kConsumers * kGroup);
    QuerySums dq;
    begin_products();
    this->add(dv, storage_.weights[now], storage_.douts[0]);
    this->multiply_dscores(dq, storage_.dscores[now]);
    this->add(dk, storage_.dscores[now], storage_.queries[now]);
    stage_.advance();
    if (kHasNext) {
      multiply_queries(scores);
      wait_for_products<2>();
    } else {
      wait_for_products<1>();
    }
    pin(dv);
    pin(dq);
    release(storage_.douts_free[0]);
#pragma unroll
    for (uint32_t pass = 0; pass < S::kPasses; ++pass) {
      this->write_dq(dq, pass);
      show_to_products();
      this->pass_dq_on();
    }
    if (kHasNext) multiply_douts(dweights);
    wait_for_products<0>();
    pin(dk);
    pin(scores);
    pin(dweights);
    release(storage_.queries_free[now]);
  }

  Turn<1> dout_;
};

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

bool computes_attention_grad(const AttentionHeads& heads) { return runs_attention_grad(gpu_limits(), heads.head_dim); }

cudaError_t attention_grad(const AttentionGradCall& call, cudaStream_t stream) {
  const auto kv_heads = static_cast<uint64_t>(call.heads.num_kv_heads),
             heads = kv_heads * static_cast<uint64_t>(call.heads.group),
             head_dim = static_cast<uint64_t>(call.heads.head_dim);
  const GradScratch scratch(call.heads, call.num_tiles);
  auto* const memory = static_cast<uint8_t*>(call.scratch);
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  Params params = {.q = {},
                   .dout = {},
                   .k = {},
                   .v = {},
                   .q_data = static_cast<const bf16*>(call.q_THK),
                   .dout_data = static_cast<const bf16*>(call.dout_THK),
                   .k_data = static_cast<const bf16*>(call.k_nGK),
                   .v_data = static_cast<const bf16*>(call.v_nGK),
                   .dk = static_cast<bf16*>(call.dk_nGK),
                   .dv = static_cast<bf16*>(call.dv_nGK),
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
  if (call.num_items > 0 && !(describe(params.q, call.q_THK, heads, call.num_rows, kRows) &&
                              describe(params.dout, call.dout_THK, heads, call.num_rows, kRows) &&
                              describe(params.k, call.k_nGK, kv_heads, call.num_keys, box_keys) &&
                              describe(params.v, call.v_nGK, kv_heads, call.num_keys, box_keys))) {
    return cudaErrorInvalidValue;
  }
  if (call.num_tiles == 0) return cudaSuccess;
  switch (head_width(call.heads.head_dim)) {
    case 64: return launch<64>(params, call, stream);
    case 128: return launch<128>(params, call, stream);
    case 256: return launch<256>(params, call, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace tandem::device::cuda
