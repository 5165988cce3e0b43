#include "rollout/kv_allocator.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/check.h"

namespace tandem::rollout {

namespace {

// Each running sequence must find blocks for so many tokens free before another one is let in, so that it is not thrown
// out again a few tokens later: recomputing it costs more than its slot gains.
constexpr int64_t kGrowthTokens = 4 * device::kBlockTokens;

int64_t unseen_of(const BlockKind& kind, int64_t position) {
  if (kind.window == 0) return 0;
  return std::max<int64_t>(position + 1 - kind.window, 0) / kind.tokens;
}

}  // namespace

bool BlockLists::empty() const {
  return std::ranges::all_of(of_kind, [](const std::vector<int32_t>& list) { return list.empty(); });
}

KvAllocator::KvAllocator(int64_t num_blocks, std::vector<BlockKind> kinds)
    : kinds_(std::move(kinds)), span_(span_of(kinds_)), pool_(num_blocks) {
  TANDEM_CHECK(!kinds_.empty());
  for (const BlockKind& kind : kinds_) {
    TANDEM_CHECK(kind.tokens > 0 && kind.tokens % device::kBlockTokens == 0 && kind.window >= 0, kind.tokens,
                 kind.window);
    TANDEM_CHECK_EQ(span_ % kind.tokens, 0);
  }
}

int64_t KvAllocator::unseen_blocks(int64_t position) const {
  int64_t sum = 0;
  for (const BlockKind& kind : kinds_) sum += unseen_of(kind, position);
  return sum;
}

int64_t KvAllocator::most_held_blocks(int64_t tokens, int64_t max_batch_tokens) const {
  int64_t sum = 0;
  for (const BlockKind& kind : kinds_) sum += rollout::most_held_blocks(kind, tokens, max_batch_tokens);
  return sum;
}

int64_t KvAllocator::growth_blocks(int64_t held_tokens, int64_t max_tokens) const {
  int64_t sum = 0;
  for (const BlockKind& kind : kinds_) {
    // The last token of a sequence ends it: nothing attends to it, so it has no KV.
    const int64_t missing = blocks_of(kind, max_tokens - 1) - held_tokens / kind.tokens;
    sum += std::clamp<int64_t>(missing, 0, blocks_of(kind, kGrowthTokens));
  }
  return sum;
}

int64_t KvAllocator::capacity(const BlockLists& lists) const {
  if (lists.of_kind.empty()) return 0;
  int64_t least = std::ssize(lists.of_kind[0]) * kinds_[0].tokens;
  for (size_t k = 1; k < kinds_.size(); ++k) least = std::min(least, std::ssize(lists.of_kind[k]) * kinds_[k].tokens);
  return least;
}

bool KvAllocator::holds_window(const BlockLists& lists, int64_t computed) const {
  for (size_t k = 0; k < lists.of_kind.size(); ++k) {
    const int64_t first = unseen_of(kinds_[k], computed);  // those from there on are held, if this one is
    if (first < std::ssize(lists.of_kind[k]) && lists.of_kind[k][static_cast<size_t>(first)] == kNoBlock) return false;
  }
  return true;
}

bool KvAllocator::shares_slot(const BlockLists& lists, int64_t position) const {
  for (size_t k = 0; k < lists.of_kind.size(); ++k) {
    const int64_t index = position / kinds_[k].tokens;
    // At the beginning of a block the token's is another one, which comes after these.
    if (position % kinds_[k].tokens == 0 || index >= std::ssize(lists.of_kind[k])) continue;
    if (pool_.reference_count(lists.of_kind[k][static_cast<size_t>(index)]) > 1) return true;
  }
  return false;
}

int64_t KvAllocator::grow(BlockLists& lists, int64_t tokens, const std::function<std::optional<int32_t>()>& allocate) {
  lists.of_kind.resize(kinds_.size());
  int64_t reached = tokens;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    std::vector<int32_t>& list = lists.of_kind[k];
    while (std::ssize(list) * kinds_[k].tokens < reached) {
      const std::optional<int32_t> block = allocate();
      if (block) {
        list.push_back(*block);
      } else {
        reached = std::ssize(list) * kinds_[k].tokens;
      }
    }
  }
  if (reached < tokens) cut(lists, reached);
  return reached;
}

void KvAllocator::release_last(std::vector<int32_t>& list, int64_t num_kept) {
  while (std::ssize(list) > num_kept) {
    if (list.back() != kNoBlock) pool_.release(list.back());
    list.pop_back();
  }
}

void KvAllocator::cut(BlockLists& lists, int64_t tokens) {
  for (size_t k = 0; k < lists.of_kind.size(); ++k) release_last(lists.of_kind[k], blocks_of(kinds_[k], tokens));
}

void KvAllocator::drop_unseen(BlockLists& lists, int64_t position) {
  for (size_t k = 0; k < lists.of_kind.size(); ++k) {
    std::vector<int32_t>& list = lists.of_kind[k];
    for (int64_t i = std::min(unseen_of(kinds_[k], position), std::ssize(list)) - 1; i >= 0; --i) {
      int32_t& block = list[static_cast<size_t>(i)];
      if (block == kNoBlock) break;  // so are all before it
      pool_.release(std::exchange(block, kNoBlock));
    }
  }
}

bool KvAllocator::own_slot(BlockLists& lists, int64_t position, std::vector<BlockCopy>& copies) {
  for (size_t k = 0; k < lists.of_kind.size(); ++k) {
    const auto index = static_cast<size_t>(position / kinds_[k].tokens);
    if (index >= lists.of_kind[k].size()) continue;
    int32_t& block = lists.of_kind[k][index];
    if (pool_.reference_count(block) == 1) continue;
    const std::optional<int32_t> own = pool_.allocate();
    if (!own) return false;
    copies.push_back({.from = block, .to = *own});
    pool_.release(std::exchange(block, *own));
  }
  return true;
}

BlockLists KvAllocator::share(const BlockLists& lists, int64_t tokens) {
  BlockLists shared = lists;
  for (size_t k = 0; k < shared.of_kind.size(); ++k) {
    shared.of_kind[k].resize(static_cast<size_t>(blocks_of(kinds_[k], tokens)));
  }
  return share(std::move(shared));
}

BlockLists KvAllocator::share(BlockLists lists) {
  for (const std::vector<int32_t>& list : lists.of_kind) {
    for (const int32_t block : list) {
      if (block != kNoBlock) pool_.add_reference(block);
    }
  }
  return lists;
}

BlockLists KvAllocator::take(BlockLists& lists, int64_t tokens) const {
  BlockLists taken;
  for (size_t k = 0; k < lists.of_kind.size(); ++k) {
    std::vector<int32_t>& list = lists.of_kind[k];
    const auto end = list.begin() + blocks_of(kinds_[k], tokens);
    taken.of_kind.emplace_back(list.begin(), end);
    list.erase(list.begin(), end);
  }
  return taken;
}

void KvAllocator::release(BlockLists& lists) {
  for (std::vector<int32_t>& list : lists.of_kind) release_last(list, 0);
}

}  // namespace tandem::rollout
