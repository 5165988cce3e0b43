// Counts the holders of each KV block. It has host integers only: the bytes live in KvCache.
// A block is free or has a reference count. Allocation takes the lowest free block, so that used blocks gather at one
// end of the arena.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tandem::rollout {

class BlockPool {
 public:
  explicit BlockPool(int64_t num_blocks);

  int64_t num_blocks() const { return static_cast<int64_t>(reference_counts_.size()); }
  int64_t num_free() const { return num_free_; }
  int64_t num_used() const { return num_blocks() - num_free_; }
  int32_t reference_count(int32_t block) const { return reference_counts_[static_cast<size_t>(block)]; }

  // Returns the lowest free block, with one reference; nullopt when none is free.
  std::optional<int32_t> allocate();
  void add_reference(int32_t block);
  void release(int32_t block);

  // Throws BugError when the counts, the free set and the totals contradict each other.
  void check_invariants() const;

 private:
  bool is_free(int64_t block) const { return (free_words_[block / 64] >> (block % 64) & 1) != 0; }
  void set_free(int64_t block, bool free);
  int64_t lowest_free() const;  // needs num_free_ > 0

  std::vector<int32_t> reference_counts_;  // count by block; 0: free
  std::vector<uint64_t> free_words_;       // bit b % 64 of word b / 64 is set if block b is free
  int64_t num_free_ = 0;
  size_t first_free_word_ = 0;  // index before which no word has a free block
};

}  // namespace tandem::rollout
