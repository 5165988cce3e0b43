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

class TensorRanksPlan {
 public:
  TensorRanksPlan(const device::OpsPlan& ops, int64_t num_ranks) : ops_(ops), num_ranks_(num_ranks) {}

  bool is_alone() const { return num_ranks_ == 1; }
  // Of a part [rows, width] of elements of `part_bytes`, to elements of `out_bytes`.
  device::OpBytes sum(Size rows, Size width, Size part_bytes, Size out_bytes) const;
  // The same to the own rows alone.
  device::OpBytes sum_own_rows(Size rows, Size width, Size part_bytes, Size out_bytes) const;
  // Of float32, to [rows, whole_width], where the own part has own_width.
  device::OpBytes gather_columns(Size rows, Size own_width, Size whole_width) const;

 private:
  Size most_own_rows(Size rows) const { return (rows + num_ranks_ - 1) / num_ranks_; }
  // What a rank takes to add up so many of the rows.
  Size summing(Size summed_rows, Size width, Size part_bytes) const;

  const device::OpsPlan& ops_;
  int64_t num_ranks_;
};

}  // namespace tandem::model
