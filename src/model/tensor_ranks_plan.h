// States the bytes that model/tensor_ranks.h allocates. The part that it is given is not among them. No torch.
#pragma once

#include <cstdint>

#include "base/size.h"
#include "device/ops_plan.h"

namespace tandem::model {

using base::Size;

// A part of at most so many bytes is sent to all ranks, and each adds all of it up. Larger ones are cut by rows: a rank
// adds up its rows, and the sums are gathered, which moves and holds less but takes two exchanges. The bits are the
// same.
constexpr int64_t kGatheredPartBytes = int64_t{1} << 20;

// The rows [begin, end) that a rank owns where `num_ranks` share R rows: those of rank r begin at R * r / num_ranks.
// Where there are fewer rows than ranks, some ranks own none.
struct OwnRows {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};
constexpr OwnRows own_rows(int64_t num_rows, int rank, int num_ranks) {
  return {.begin = num_rows * rank / num_ranks, .end = num_rows * (rank + 1) / num_ranks};
}

class TensorRanksPlan {
 public:
  TensorRanksPlan(const device::OpsPlan& ops, int64_t num_ranks) : ops_(ops), num_ranks_(num_ranks) {}

  bool is_alone() const { return num_ranks_ == 1; }
  // Adds up parts [rows, width] with elements of `part_bytes`, to a sum with elements of `out_bytes`.
  device::OpBytes sum(Size rows, Size width, Size part_bytes, Size out_bytes) const;
  // Does so for the own rows of the sum alone.
  device::OpBytes sum_own_rows(Size rows, Size width, Size part_bytes, Size out_bytes) const;
  // Gathers the own rows of [rows, whole_width] in float32, of which this rank has the part [rows, own_width]. One rank
  // alone makes a view.
  device::OpBytes whole_own_rows(Size rows, Size own_width, Size whole_width) const;
  // Returns the most rows that a rank owns of so many.
  Size most_own_rows(Size rows) const { return (rows + num_ranks_ - 1) / num_ranks_; }

 private:
  // Returns what a rank takes to add up so many rows.
  Size summing(Size summed_rows, Size width, Size part_bytes) const;

  const device::OpsPlan& ops_;
  int64_t num_ranks_;
};

}  // namespace tandem::model
