#include "rollout/kv_blocks.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.h"

namespace tandem::rollout {

BlockPool::BlockPool(int64_t num_blocks) {
  TANDEM_CHECK(num_blocks > 0 && num_blocks <= std::numeric_limits<int32_t>::max(), num_blocks);
  reference_counts_.assign(static_cast<size_t>(num_blocks), 0);
  free_words_.assign(static_cast<size_t>((num_blocks + 63) / 64), 0);
  for (int64_t block = 0; block < num_blocks; ++block) set_free(block, true);
  num_free_ = num_blocks;
}

void BlockPool::set_free(int64_t block, bool free) {
  const uint64_t bit = uint64_t{1} << (block % 64);
  uint64_t& word = free_words_[static_cast<size_t>(block / 64)];
  word = free ? word | bit : word & ~bit;
}

int64_t BlockPool::lowest_free() const {
  size_t word = first_free_word_;
  while (free_words_[word] == 0) ++word;
  return static_cast<int64_t>(word) * 64 + std::countr_zero(free_words_[word]);
}

std::optional<int32_t> BlockPool::allocate() {
  if (num_free_ == 0) return std::nullopt;
  const int64_t block = lowest_free();
  first_free_word_ = static_cast<size_t>(block / 64);
  set_free(block, false);
  --num_free_;
  reference_counts_[static_cast<size_t>(block)] = 1;
  return static_cast<int32_t>(block);
}

void BlockPool::add_reference(int32_t block) {
  TANDEM_CHECK(reference_count(block) > 0, "block", block, "is free");
  ++reference_counts_[static_cast<size_t>(block)];
}

void BlockPool::release(int32_t block) {
  TANDEM_CHECK(reference_count(block) > 0, "block", block, "is free");
  if (--reference_counts_[static_cast<size_t>(block)] > 0) return;
  set_free(block, true);
  ++num_free_;
  first_free_word_ = std::min(first_free_word_, static_cast<size_t>(block / 64));
}

void BlockPool::check_invariants() const {
  int64_t num_free = 0;
  for (int64_t block = 0; block < num_blocks(); ++block) {
    const int32_t count = reference_count(static_cast<int32_t>(block));
    TANDEM_CHECK(count >= 0, "block", block, "has", count, "references");
    TANDEM_CHECK_EQ(is_free(block), count == 0, "block", block);
    if (!is_free(block)) continue;
    ++num_free;
    TANDEM_CHECK(static_cast<size_t>(block / 64) >= first_free_word_, "block", block);
  }
  TANDEM_CHECK_EQ(num_free, num_free_);
}

}  // namespace tandem::rollout
