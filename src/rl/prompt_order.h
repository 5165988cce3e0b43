// Which record comes next: epochs over a data set, in file order or shuffled. The order is a function of (seed, epoch),
// so the cursor is all that a checkpoint has to hold.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem::rl {

// Where the next record lies: plain data, to be saved.
struct PromptCursor {
  int64_t epoch = 0;
  int64_t offset = 0;  // in the epoch's order, below the number of records
  bool operator==(const PromptCursor&) const = default;
};

// 0 ... size - 1 in an order that (seed, epoch) alone decides: Fisher-Yates with Philox uniforms.
std::vector<int64_t> shuffled_indices(int64_t size, uint64_t seed, int64_t epoch);

class PromptOrder {
 public:
  // BugError when size is not positive.
  PromptOrder(int64_t size, bool shuffle, uint64_t seed);

  // The record under the cursor, which moves on; after an epoch's last record the next epoch begins, also inside a
  // batch.
  int64_t next();

  const PromptCursor& cursor() const { return cursor_; }
  // Records in front of the cursor, over all epochs: the number of the next one in the whole run.
  int64_t num_taken() const;
  void set_cursor(const PromptCursor& cursor);  // BugError when it lies outside the data set

 private:
  int64_t size_;
  bool shuffle_;
  uint64_t seed_;
  PromptCursor cursor_;
  int64_t order_epoch_ = -1;    // the epoch that order_ is of
  std::vector<int64_t> order_;  // empty without shuffle
};

}  // namespace tandem::rl
