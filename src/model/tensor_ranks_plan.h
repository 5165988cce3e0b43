// What model/tensor_ranks.h allocates, beside the part that it is given. No torch.
#pragma once

#include <cstdint>

#include "base/size.h"
#include "device/ops_plan.h"

namespace tandem::model {

using base::Size;

// Bytes of a part up to which all ranks are sent all of it and each adds all of it up. Larger ones are cut by rows: a
// rank adds up its rows, and the sums are gathered, which moves and holds less but takes two exchanges. The bits are
// the same.
constexpr int64_t kGatheredPartBytes = int64_t{1} << 20;

// Rows [begin, end) that are a rank's where each of `num_ranks` has its own: of R rows rank r has those from
// R * r / num_ranks on. Of fewer rows than ranks some have none.
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
  // Of a part [rows, width] of elements of `part_bytes`, to elements of `out_bytes`.
  device::OpBytes sum(Size rows, Size width, Size part_bytes, Size out_bytes) const;
  // The same to the own rows alone.
  device::OpBytes sum_own_rows(Size rows, Size width, Size part_bytes, Size out_bytes) const;
  // Own rows of [rows, whole_width] in float32, of parts of which the own one has own_width. Of one rank: a view.
  device::OpBytes whole_own_rows(Size rows, Size own_width, Size whole_width) const;
  // Of so many rows, the most that a rank has.
  Size most_own_rows(Size rows) const { return (rows + num_ranks_ - 1) / num_ranks_; }

 private:
  // What a rank takes to add up so many of the rows.
  Size summing(Size summed_rows, Size width, Size part_bytes) const;

  const device::OpsPlan& ops_;
  int64_t num_ranks_;
};

}  // namespace tandem::model
