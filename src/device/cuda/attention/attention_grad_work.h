// The host's side of the gradient of attention (attention_grad.h): which block computes what, and in which order sums
// are added. No torch and no CUDA, so that it can be tested where there is no GPU.
//
// A segment of ExpandedRows has tiles of kGradRows query rows and blocks of grad_keys() keys. An item is a block of a
// segment's keys of one KV head, with all tiles that see a key of it, of all query heads of the KV head. It sums the
// gradients of its keys and values by itself. The gradient of a tile's queries is the sum of what the blocks that the
// tile sees add to it, one after the other: descending from the tile's last block, or ascending from its first.
//
// Items are listed so that an item comes after those that add to a tile before it. A GPU that takes items in this order
// never waits for one that nobody has taken. In a descending unit (a segment and a KV head) an item also walks its
// tiles upwards from the first, which it shares with the fewest blocks, and in an ascending one downwards from the
// last: then an item that is taken no earlier reaches each tile later than those before it, and hardly ever waits. A
// descending unit begins with its shortest items and ends with its longest, an ascending one the other way round. So
// the last units, as many as fill a GPU, are ascending: their longest items start while others end.
//
// The rows and the number of heads decide, never the GPU, so the same rows give the same bits everywhere; dq of a
// process that has some of a model's heads may have other bits than in one that has all.
#pragma once

#include <cstdint>
#include <vector>

#include "base/size.h"
#include "device/cuda/attention/attention_work.h"

namespace tandem::device::cuda {

constexpr int64_t kGradRows = 64;
// Sums of a block's keys are registers, so that larger heads have fewer keys.
constexpr int64_t grad_keys(int64_t head_dim) { return head_width(head_dim) == 256 ? 64 : 128; }
// The parts of a head's columns in which a tile's dq is added.
constexpr int64_t grad_parts(int64_t head_dim) { return head_width(head_dim) == 256 ? 4 : 2; }

enum class GradOrder : int32_t { kDescending, kAscending };

// These are read on the device as they are.
struct GradSegment {
  int32_t row = 0, rows = 0;  // query rows
  int32_t key = 0, keys = 0;  // expanded keys; none: rows that fill up a batch
  int32_t tile = 0;           // the first one
};
struct GradTile {
  int32_t row = 0, rows = 0;
  int32_t keys = 0;  // of its segment
};
struct GradItem {
  int32_t segment = 0, kv_head = 0, block = 0;
  GradOrder order = GradOrder::kDescending;
};

// Says which keys the rows of a segment see: row r sees those up to its own, which is key `prefix` + r, and of them the
// last `window`.
struct GradView {
  int32_t rows, keys, window;  // keys_of_window()
  int32_t block_keys;          // grad_keys()
  constexpr int32_t prefix() const { return keys - rows; }
  // The tiles that see a key of a block; none where end_tile() is not above first_tile().
  constexpr int32_t first_tile(int32_t block) const {
    const int32_t row = block * block_keys - prefix();
    return row > 0 ? row / static_cast<int32_t>(kGradRows) : 0;
  }
  constexpr int32_t end_tile(int32_t block) const {
    const int32_t last = (block + 1) * block_keys - 2 - prefix() + window;
    return last < 0 ? 0 : (last < rows - 1 ? last : rows - 1) / static_cast<int32_t>(kGradRows) + 1;
  }
  // The blocks of which a row of a tile sees a key.
  constexpr int32_t last_block(int32_t tile) const {
    const int32_t last = (tile + 1) * static_cast<int32_t>(kGradRows) - 1;
    return (prefix() + (last < rows - 1 ? last : rows - 1)) / block_keys;
  }
  constexpr int32_t first_block(int32_t tile) const {
    const int32_t key = prefix() + tile * static_cast<int32_t>(kGradRows) - window + 1;
    return key > 0 ? key / block_keys : 0;
  }
  // Returns how many blocks add to a tile before this one.
  constexpr int32_t num_before(int32_t block, int32_t tile, GradOrder order) const {
    return order == GradOrder::kDescending ? last_block(tile) - block : block - first_block(tile);
  }
};

struct GradWork {
  std::vector<GradSegment> segments;
  std::vector<GradTile> tiles;
  std::vector<GradItem> items;
};
GradWork build_grad_work(const ExpandedRows& rows, const AttentionHeads& heads);

// The memory that the kernels take beside their operands, and the bytes at which its parts begin.
struct GradScratch {
  GradScratch(const AttentionHeads& heads, base::Size num_tiles);
  base::Size dq;         // float32 [tiles, heads, kGradRows * head_width()], in the kernels' own order
  base::Size row_terms;  // float32 [tiles, heads, 2, kGradRows]
  base::Size num_added;  // uint32 [tiles, heads, grad_parts()]
  base::Size next_item;  // int32
  base::Size bytes;
};

}  // namespace tandem::device::cuda
