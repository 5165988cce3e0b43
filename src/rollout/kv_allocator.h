// Allocates KV blocks to sequences, which have a list for each kind of block (rollout/kv_layout.h), and lets sequences
// that begin alike share them. It has host integers only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "rollout/kv_blocks.h"
#include "rollout/kv_layout.h"

namespace tandem::rollout {

// Stands for a block that a sequence has given up.
constexpr int32_t kNoBlock = -1;

struct BlockCopy {
  int32_t from = 0, to = 0;
};

// The blocks of one sequence: those of each kind in the order of its positions.
struct BlockLists {
  std::vector<std::vector<int32_t>> of_kind;
  bool empty() const;  // no list has a block
};

class KvAllocator {
 public:
  KvAllocator(int64_t num_blocks, std::vector<BlockKind> kinds);

  const BlockPool& pool() const { return pool_; }
  std::optional<int32_t> allocate() { return pool_.allocate(); }

  int64_t span() const { return span_; }  // span_of() its kinds
  // Returns how many blocks so many tokens fill or begin.
  int64_t blocks_for(int64_t tokens) const { return blocks_of(kinds_, tokens); }
  // Returns how many of a sequence's blocks no token from `position` on sees.
  int64_t unseen_blocks(int64_t position) const;
  // Return the most tokens that a sequence has in a forward, and the most blocks that one of so many tokens holds at
  // once.
  int64_t most_part_tokens(int64_t max_batch_tokens) const {
    return rollout::most_part_tokens(kinds_, max_batch_tokens);
  }
  int64_t most_held_blocks(int64_t tokens, int64_t max_batch_tokens) const;
  // Returns the blocks, few of them, that a sequence of at most `max_tokens` may ask for soon, on top of the full ones
  // of `held_tokens`.
  int64_t growth_blocks(int64_t held_tokens, int64_t max_tokens) const;

  // Returns the tokens that these blocks have room for.
  int64_t capacity(const BlockLists& lists) const;
  // Returns whether a sequence that has computed so many tokens finds all that it will see in these blocks.
  bool holds_window(const BlockLists& lists, int64_t computed) const;
  // Returns whether others hold a block as well that the token at `position` would be written into.
  bool shares_slot(const BlockLists& lists, int64_t position) const;

  // Adds blocks from `allocate` until there is room for so many tokens, or until it returns none. Returns the tokens
  // that there is room for, at most `tokens`, and keeps no block more than they need.
  int64_t grow(BlockLists& lists, int64_t tokens, const std::function<std::optional<int32_t>()>& allocate);
  // Frees the blocks past so many tokens.
  void cut(BlockLists& lists, int64_t tokens);
  // Gives up the blocks that no token from `position` on sees.
  void drop_unseen(BlockLists& lists, int64_t position);
  // Makes the slot of the token at `position` writable, where the lists reach it: a block that others hold as well is
  // replaced by a copy, which is added to `copies`. Returns false when no block is free.
  bool own_slot(BlockLists& lists, int64_t position, std::vector<BlockCopy>& copies);
  // Returns the blocks of the first so many tokens, with a reference more each.
  BlockLists share(const BlockLists& lists, int64_t tokens);
  BlockLists share(BlockLists lists);
  // Takes the blocks of the first so many tokens out of `lists`.
  BlockLists take(BlockLists& lists, int64_t tokens) const;
  void release(BlockLists& lists);

 private:
  void release_last(std::vector<int32_t>& list, int64_t num_kept);

  std::vector<BlockKind> kinds_;
  int64_t span_ = 0;
  BlockPool pool_;
};

}  // namespace tandem::rollout
