// A stand-in for the model and its cache, to test scheduling alone: the KV of a token is a hash of everything up to it.
// A wrong block, a missed copy or a lost token changes every hash after it, and so every token drawn from there.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <unordered_map>
#include <vector>

#include "device/block.h"
#include "rollout/scheduler.h"

namespace tandem::rollout {

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15ULL)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 29)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 32);
}

constexpr uint64_t kEmptyHistory = 0x1234;

class FakeForward {
 public:
  // With a window, of at least two tokens, a row attends to so many positions.
  explicit FakeForward(int64_t num_blocks, int64_t window = 0)
      : kv_(static_cast<size_t>(num_blocks * device::kBlockTokens), 0), window_(window) {}

  // Writes garbage into free memory, so that a forward which reads it is noticed.
  void poison_free_blocks(const BlockPool& pool) {
    for (int32_t block = 0; block < pool.num_blocks(); ++block) {
      if (pool.reference_count(block) > 0) continue;
      for (int64_t i = 0; i < device::kBlockTokens; ++i) kv_[slot(block, i)] = 0xDEAD0000 + ++poison_;
    }
  }

  void copy(const std::vector<BlockCopy>& copies) {
    for (const BlockCopy& copy : copies) {
      for (int64_t i = 0; i < device::kBlockTokens; ++i) kv_[slot(copy.to, i)] = kv_[slot(copy.from, i)];
    }
  }

  // Runs the plan. `drawn` are the tokens that the previous plan drew, `histories` the true tokens of each sequence, to
  // which a plan with drafts adds them. Returns one hash per logits row.
  std::vector<uint64_t> run(const ScheduledBatch& plan, const std::vector<int32_t>& drawn,
                            std::unordered_map<SequenceId, std::vector<int32_t>> histories) {
    copy(plan.copies);
    std::set<int32_t> written;
    for (size_t row = 0; row < plan.token_ids.size(); ++row) {
      const int32_t position = plan.positions[row];
      EXPECT_EQ(static_cast<size_t>(plan.slot_mapping[row]), slot_of(plan, row, position));
      EXPECT_TRUE(written.insert(plan.slot_mapping[row]).second) << "two rows write slot " << plan.slot_mapping[row];
      const uint64_t before = position == 0 ? kEmptyHistory : kv_[slot_of(plan, row, position - 1)];
      const int32_t id = plan.token_ids[row];
      const int32_t token = id < 0 ? drawn.at(static_cast<size_t>(-1 - id)) : id;
      std::vector<int32_t>& history = histories.at(plan.sequences[static_cast<size_t>(plan.sequence_of_row[row])]);
      if (static_cast<size_t>(position) == history.size()) history.push_back(token);
      kv_[static_cast<size_t>(plan.slot_mapping[row])] = mix(before, static_cast<uint64_t>(token));
    }
    for (size_t row = 0; row < plan.token_ids.size(); ++row) expect_history(plan, row, histories);
    std::vector<uint64_t> results;
    for (const int32_t row : plan.logits_rows) {
      const auto index = static_cast<size_t>(row);
      results.push_back(kv_[slot_of(plan, index, plan.positions[index])]);
    }
    return results;
  }

 private:
  static size_t slot(int32_t block, int64_t offset) {
    return static_cast<size_t>(block * device::kBlockTokens + offset);
  }

  static size_t slot_of(const ScheduledBatch& plan, size_t row, int32_t position) {
    const int64_t index = plan.sequence_of_row[row] * plan.max_blocks + position / device::kBlockTokens;
    return slot(plan.block_table[static_cast<size_t>(index)], position % device::kBlockTokens);
  }

  // Expects that every key that the row would attend to is the right one.
  void expect_history(const ScheduledBatch& plan, size_t row,
                      const std::unordered_map<SequenceId, std::vector<int32_t>>& histories) const {
    const SequenceId id = plan.sequences[static_cast<size_t>(plan.sequence_of_row[row])];
    const std::vector<int32_t>& history = histories.at(id);
    ASSERT_LT(static_cast<size_t>(plan.positions[row]), history.size());
    uint64_t hash = kEmptyHistory;
    for (int32_t position = 0; position <= plan.positions[row]; ++position) {
      hash = mix(hash, static_cast<uint64_t>(history[static_cast<size_t>(position)]));
      if (window_ > 0 && position <= plan.positions[row] - window_) continue;
      ASSERT_EQ(kv_[slot_of(plan, row, position)], hash) << "sequence " << id << ", position " << position;
    }
  }

  std::vector<uint64_t> kv_;  // [slots]
  int64_t window_;
  uint64_t poison_ = 0;
};

}  // namespace tandem::rollout
