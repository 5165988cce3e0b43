// Which record comes next: epochs over a data set, in file order or shuffled. The order is a function of the seed and
// the cursor, so the cursor is all that a checkpoint has to hold.
//
// With weights, the records are of several files, and each record that is taken is of a file that is drawn by its
// weight. Every file has epochs of its own: its records come once each, in file order or shuffled, before any of them
// comes again. The cursor then counts an epoch for as many records as all files have together.
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
  // `file_sizes`: the records of each file, which follow each other. `weights`: of each file, or empty. BugError when a
  // size or a weight is not positive.
  PromptOrder(std::vector<int64_t> file_sizes, std::vector<double> weights, bool shuffle, uint64_t seed);
  // Of one file, or of several whose records are taken as one's.
  PromptOrder(int64_t size, bool shuffle, uint64_t seed) : PromptOrder({size}, {}, shuffle, seed) {}

  // The record under the cursor, which moves on; after an epoch's last record the next epoch begins, also inside a
  // batch.
  int64_t next();

  const PromptCursor& cursor() const { return cursor_; }
  // Records in front of the cursor, over all epochs: the number of the next one in the whole run.
  int64_t num_taken() const;
  void set_cursor(const PromptCursor& cursor);  // BugError when it lies outside the data set

 private:
  // One data set, of which records are taken in turn.
  struct File {
    int64_t begin = 0, size = 0;  // of its records among all
    int64_t num_taken = 0;        // over all its epochs
    int64_t order_epoch = -1;     // the epoch that `order` is of
    std::vector<int64_t> order;   // empty without shuffle
  };
  size_t drawn_file(int64_t number) const;
  int64_t record_of(size_t file);

  int64_t size_ = 0;  // of all files
  bool shuffle_;
  uint64_t seed_;
  PromptCursor cursor_;
  std::vector<File> files_;     // one where there are no weights
  std::vector<double> shares_;  // with weights: of the sum of all, that of the files up to each
};

}  // namespace tandem::rl
