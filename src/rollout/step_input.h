// The input of one step of the engine: a scheduled batch and its draws as flat arrays on the host, filled up to a
// bucket where the step is one that is recorded. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "device/draw.h"
#include "rollout/scheduler.h"

namespace tandem::rollout {

// A decode step is filled up to these rows, so that few different steps are recorded: 1, 2, 4, 8, 16, 24, 32, 48, 64,
// 96, and every 32 up to 512. 0 means that none is so large.
constexpr int64_t kLargestBucket = 512;
int64_t bucket_rows(int64_t num_rows);

// Returns whether each row has a draw of its own: one row of a sequence, or more where it has drafts. Only such a step
// is recorded.
bool is_decode(const ScheduledBatch& plan);

// The sizes of a step's arrays, and the offset of each in the one array of int32 words that goes to the device.
struct StepShape {
  int64_t num_rows = 0;         // T
  int64_t num_draws = 0;        // n
  int64_t num_logits_rows = 0;  // R; 0: every row has logits, in order
  int64_t num_sequences = 0;    // S
  int64_t max_blocks = 0;       // columns of a block table
  int64_t num_kinds = 1;        // of KV blocks: each has slots and a block table of its own

  static constexpr int64_t kDrawWords = sizeof(device::Draw) / sizeof(int32_t);
  // Draws come first, because they are aligned to 8 bytes.
  int64_t ids_begin() const { return num_draws * kDrawWords; }
  int64_t positions_begin() const { return ids_begin() + num_rows; }
  int64_t slots_begin(int64_t kind) const { return positions_begin() + num_rows * (1 + kind); }
  int64_t logits_rows_begin() const { return slots_begin(num_kinds); }
  int64_t num_words() const { return logits_rows_begin() + num_logits_rows; }
};

StepShape exact_shape(const ScheduledBatch& plan);
// Returns the shape of a decode step of `num_rows` rows, those that fill it up included.
StepShape bucket_shape(int64_t num_rows, int64_t max_blocks, int64_t num_kinds);

// The offsets of a bucket's arrays in the step memory, which holds those of all buckets: bytes from its start.
struct BucketPlace {
  int64_t input = 0, results = 0;
  std::vector<int64_t> rows;  // by kind of KV block: result of Ops::prepare()
  int64_t end = 0;
};
// Returns the places by rows, for every bucket up to `max_rows`. prepared_bytes(shape) is Ops::prepared_bytes().
std::map<int64_t, BucketPlace> lay_out_buckets(int64_t max_rows, int64_t max_blocks, int64_t num_kinds,
                                               const std::function<int64_t(const StepShape&)>& prepared_bytes);
// Returns the width of recorded block tables for sequences of so many tokens. It grows in steps, so that a rollout
// whose longest prompt is a little longer than the previous one's finds its recordings.
int64_t bucket_blocks(int64_t context_tokens);

// A range of draws whose logits are computed together.
struct DrawWindow {
  int64_t first_draw = 0, num_draws = 0;
  int64_t first_row = 0, num_rows = 0;  // range among the rows that have logits
};

class StepInput {
 public:
  // The rows of logits from which this rank draws: of several ranks each has its own rows of a window
  // (model::own_rows).
  struct Drawer {
    int rank = 0, num_ranks = 1;
  };
  // draws[i] is the draw of plan.sample_slots[i], its row an index of plan.logits_rows; here it counts from the own
  // rows of its window, and a draw from another row draws nothing. Rows past the plan's have the token 0 at position 0,
  // no sequence, no slot and no draw. window_rows > 0 is the number of rows of logits that are computed at once.
  void fill(const ScheduledBatch& plan, std::span<const device::Draw> draws, const StepShape& shape,
            int64_t window_rows, const Drawer& drawer);

  const StepShape& shape() const { return shape_; }
  const std::vector<int32_t>& words() const { return words_; }                                // [shape.num_words()]
  const std::vector<int32_t>& sequence_of_row() const { return sequence_of_row_; }            // [T]
  const std::vector<int32_t>& block_table(size_t kind) const { return block_tables_[kind]; }  // [S, max_blocks]
  const std::vector<DrawWindow>& windows() const { return windows_; }
  // Returns whether some token is one that the previous step draws.
  bool takes_drawn() const { return takes_drawn_; }

 private:
  void fill_rows(const ScheduledBatch& plan);
  void fill_block_tables(const ScheduledBatch& plan);
  void cut_windows(const ScheduledBatch& plan, int64_t window_rows);
  void fill_draws(std::span<const device::Draw> draws, const Drawer& drawer);

  StepShape shape_;
  std::vector<int32_t> words_, sequence_of_row_;
  std::vector<std::vector<int32_t>> block_tables_;  // by kind
  std::vector<DrawWindow> windows_;
  bool takes_drawn_ = false;
};

}  // namespace tandem::rollout
