// The first half of attention_grad.cu's kernel: the items that a block takes, the tiles of rows that each walks, what
// lies in shared memory, the warp that loads it, and the warps that add dq to global memory.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "device/cuda/attention/attention_grad.h"
#include "device/cuda/attention/attention_grad_work.h"
#include "device/cuda/tensor_map.h"
#include "device/cuda/warpgroups.cuh"

namespace tandem::device::cuda::grad {

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
  // [keys, rows]: these are of this tile and of the one before. Consumers that cut keys have weights in registers.
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

}  // namespace tandem::device::cuda::grad
