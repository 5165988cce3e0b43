// A stand-in for the model and its cache, to test scheduling alone: the KV of a token is a hash of everything up to it.
// A wrong block, a missed copy or a lost token changes every hash after it, and so every token drawn from there.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>
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
  // Every kind of block has its hash of the history in the row's slot. A row attends to the window of a kind that has
  // one, which has at least two tokens.
  explicit FakeForward(int64_t num_blocks, std::vector<BlockKind> kinds) : kinds_(std::move(kinds)) {
    for (const BlockKind& kind : kinds_) block_size_ = std::max(block_size_, kind.tokens);
    kv_.resize(static_cast<size_t>(num_blocks * block_size_));
  }

  // Writes garbage into free memory, so that a forward which reads it is noticed.
  void poison_free_blocks(const BlockPool& pool) {
    for (int32_t block = 0; block < pool.num_blocks(); ++block) {
      if (pool.reference_count(block) > 0) continue;
      for (int64_t i = 0; i < block_size_; ++i) kv_[at(block, i)] = 0xDEAD0000 + ++poison_;
    }
  }

  void copy(const std::vector<BlockCopy>& copies) {
    for (const BlockCopy& copy : copies) {
      for (int64_t i = 0; i < block_size_; ++i) kv_[at(copy.to, i)] = kv_[at(copy.from, i)];
    }
  }

  // Runs the plan. `drawn` are the tokens that the previous plan drew, `histories` the true tokens of each sequence, to
  // which a plan with drafts adds them. Returns one hash per logits row.
  std::vector<uint64_t> run(const ScheduledBatch& plan, const std::vector<int32_t>& drawn,
                            std::unordered_map<SequenceId, std::vector<int32_t>> histories) {
    copy(plan.copies);
    EXPECT_EQ(plan.places.size(), kinds_.size());
    std::set<size_t> written;
    for (size_t row = 0; row < plan.token_ids.size(); ++row) {
      const int32_t position = plan.positions[row];
      const int32_t id = plan.token_ids[row];
      const int32_t token = id < 0 ? drawn.at(static_cast<size_t>(-1 - id)) : id;
      for (size_t kind = 0; kind < kinds_.size(); ++kind) {
        const size_t slot = at_slot(kind, plan.places[kind].slot_mapping[row]);
        EXPECT_EQ(slot, slot_of(plan, kind, row, position));
        EXPECT_TRUE(written.insert(slot).second) << "two rows write slot " << slot;
        const uint64_t before = position == 0 ? kEmptyHistory : kv_[slot_of(plan, kind, row, position - 1)];
        kv_[slot] = mix(before, static_cast<uint64_t>(token));
      }
      std::vector<int32_t>& history = histories.at(plan.sequences[static_cast<size_t>(plan.sequence_of_row[row])]);
      if (static_cast<size_t>(position) == history.size()) history.push_back(token);
    }
    for (size_t row = 0; row < plan.token_ids.size(); ++row) expect_history(plan, row, histories);
    std::vector<uint64_t> results;
    for (const int32_t row : plan.logits_rows) {
      const auto index = static_cast<size_t>(row);
      results.push_back(kv_[slot_of(plan, 0, index, plan.positions[index])]);
    }
    return results;
  }

 private:
  // All kinds share the memory of a block, so that one that has two owners is noticed.
  size_t at(int32_t block, int64_t offset) const { return static_cast<size_t>(block * block_size_ + offset); }
  size_t at_slot(size_t kind, int64_t slot) const {
    const int64_t tokens = kinds_[kind].tokens;
    return at(static_cast<int32_t>(slot / tokens), slot % tokens);
  }

  size_t slot_of(const ScheduledBatch& plan, size_t kind, size_t row, int32_t position) const {
    const int64_t index = plan.sequence_of_row[row] * plan.max_blocks + position / device::kBlockTokens;
    const int64_t tile = plan.places[kind].block_table[static_cast<size_t>(index)];
    return at_slot(kind, tile * device::kBlockTokens + position % device::kBlockTokens);
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
      for (size_t kind = 0; kind < kinds_.size(); ++kind) {
        const int64_t window = kinds_[kind].window;
        if (window > 0 && position <= plan.positions[row] - window) continue;
        ASSERT_EQ(kv_[slot_of(plan, kind, row, position)], hash)
            << "sequence " << id << ", position " << position << ", kind " << kind;
      }
    }
  }

  std::vector<BlockKind> kinds_;
  int64_t block_size_ = 0;    // most positions that a block holds
  std::vector<uint64_t> kv_;  // [blocks * block_size_]
  uint64_t poison_ = 0;
};

}  // namespace tandem::rollout
