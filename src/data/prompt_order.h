// Chooses the next record: epochs over a data set, in file order or shuffled. The order is a function of the seed and
// the cursor, so the cursor is all that a checkpoint has to hold.
//
// With weights, the records are those of several files, and each record comes from a file that is drawn by its weight.
// Every file has epochs of its own: its records come once each, in file order or shuffled, before any of them comes
// again. The cursor then counts an epoch for as many records as all files have together.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem::data {

// Holds the position of the next record: plain data, to be saved.
struct PromptCursor {
  int64_t epoch = 0;
  int64_t offset = 0;  // index in the epoch's order, below the number of records
  bool operator==(const PromptCursor&) const = default;
};

// Returns 0 ... size - 1 in an order that (seed, epoch) alone decides: Fisher-Yates with Philox uniforms.
std::vector<int64_t> shuffled_indices(int64_t size, uint64_t seed, int64_t epoch);

class PromptOrder {
 public:
  // `file_sizes` has the number of records of each file, which follow each other. `weights` has one for each file, or
  // is empty. Throws BugError when a size or a weight is not positive.
  PromptOrder(std::vector<int64_t> file_sizes, std::vector<double> weights, bool shuffle, uint64_t seed);
  // Makes the order of one file, or of several whose records are taken as one's.
  PromptOrder(int64_t size, bool shuffle, uint64_t seed) : PromptOrder({size}, {}, shuffle, seed) {}

  // Returns the record at the cursor, which advances; after an epoch's last record the next epoch begins, also inside a
  // batch.
  int64_t next();

  const PromptCursor& cursor() const { return cursor_; }
  // Returns the records before the cursor, over all epochs: the number of the next one in the whole run.
  int64_t num_taken() const;
  void set_cursor(const PromptCursor& cursor);  // throws BugError if it is outside the data set

 private:
  // Holds one file, whose records are taken in turn.
  struct File {
    int64_t begin = 0, size = 0;  // range of its records among all
    int64_t num_taken = 0;        // number over all its epochs
    int64_t order_epoch = -1;     // epoch of `order`
    std::vector<int64_t> order;   // empty without shuffle
  };
  size_t drawn_file(int64_t number) const;
  int64_t record_of(size_t file);

  int64_t size_ = 0;  // records of all files
  bool shuffle_;
  uint64_t seed_;
  PromptCursor cursor_;
  std::vector<File> files_;     // one without weights
  std::vector<double> shares_;  // with weights: cumulative shares of the sum, up to each file
};

}  // namespace tandem::data
