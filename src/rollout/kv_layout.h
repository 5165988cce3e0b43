// The places that a model's keys and values have in KV blocks. No torch.
//
// A block is for layers of one kind. A model whose layers all see the same tokens has one kind, and a block holds
// kBlockTokens positions of all layers. Where some layers have a window and others have none, there are two kinds, each
// with its own blocks, so that a sequence can give up what lies before the window of those that have one. All blocks
// are equally large, so that any block can be of any kind: of the kind with fewer layers it holds more positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/size.h"
#include "device/block.h"
#include "model/config.h"

namespace tandem::rollout {

struct BlockKind {
  int64_t tokens = device::kBlockTokens;  // positions that a block holds: whole tiles of kBlockTokens
  int64_t window = 0;                     // a token sees so many at most, itself included; 0: all before it
};

struct KvLayout {
  struct LayerPlace {
    size_t kind = 0;
    int64_t index = 0;  // among the layers of this kind
  };
  std::vector<BlockKind> kinds;        // one or two
  std::vector<LayerPlace> layers;      // [L]
  std::vector<base::Size> tile_sizes;  // by kind: numbers from the beginning of a tile to that of the next
  base::Size block_size;               // numbers of a block

  int64_t tiles(size_t kind) const { return kinds[kind].tokens / device::kBlockTokens; }  // of a block
};
KvLayout kv_layout(const model::ModelConfig& config);

// Returns the blocks of a kind that so many tokens fill or begin.
inline int64_t blocks_of(const BlockKind& kind, int64_t tokens) { return (tokens + kind.tokens - 1) / kind.tokens; }

// Returns the blocks of all kinds together that so many tokens fill or begin.
int64_t blocks_of(const std::vector<BlockKind>& kinds, int64_t tokens);

// A number of tokens whose blocks are full, whatever their kind, is a multiple of this.
int64_t span_of(const std::vector<BlockKind>& kinds);

// Returns the most tokens that one sequence has in a forward of `max_batch_tokens`. Where a kind has a window they are
// 2,048 at most: until the forward has ended, the sequence holds blocks for all of them.
int64_t most_part_tokens(const std::vector<BlockKind>& kinds, int64_t max_batch_tokens);

// Returns the most blocks of a kind that a sequence of so many tokens holds at once, where a forward has at most
// `max_batch_tokens`: blocks of what the sequence's first token in a forward sees, and of its others there.
int64_t most_held_blocks(const BlockKind& kind, int64_t tokens, int64_t max_batch_tokens);

}  // namespace tandem::rollout
