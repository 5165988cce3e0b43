#include "model/tensor_ranks_plan.h"

#include <algorithm>

namespace tandem::model {

constexpr int64_t kFloatBytes = 4;

device::OpBytes TensorRanksPlan::sum(Size rows, Size width, Size part_bytes, Size out_bytes) const {
  const Size result = rows * width * out_bytes;
  const bool is_gathered = rows * width * part_bytes <= kGatheredPartBytes || rows < num_ranks_;
  const Size summed_rows = is_gathered ? rows : (rows + num_ranks_ - 1) / num_ranks_;  // by one rank, at most
  const Size received = (num_ranks_ - 1) * summed_rows * width * part_bytes;
  return {.result = result, .most = result + received + ops_.sum_parts(summed_rows * width).most};
}

device::OpBytes TensorRanksPlan::gather_columns(Size rows, Size own_width, Size whole_width) const {
  const Size result = rows * whole_width * kFloatBytes;
  return {.result = result, .most = result + rows * (whole_width - own_width) * kFloatBytes};
}

}  // namespace tandem::model
