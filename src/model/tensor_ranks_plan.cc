#include "model/tensor_ranks_plan.h"

#include <algorithm>
#include "base/size.h"

namespace tandem::model {

using base::kFloatBytes;

device::OpBytes TensorRanksPlan::sum(Size rows, Size width, Size part_bytes, Size out_bytes) const {
  const Size result = rows * width * out_bytes;
  const bool is_gathered = rows * width * part_bytes <= kGatheredPartBytes || rows < num_ranks_;
  return {.result = result, .most = result + summing(is_gathered ? rows : most_own_rows(rows), width, part_bytes)};
}

device::OpBytes TensorRanksPlan::sum_own_rows(Size rows, Size width, Size part_bytes, Size out_bytes) const {
  const Size own_rows = most_own_rows(rows), result = own_rows * width * out_bytes;
  return {.result = result, .most = result + summing(own_rows, width, part_bytes)};
}

Size TensorRanksPlan::summing(Size summed_rows, Size width, Size part_bytes) const {
  const Size received = (num_ranks_ - 1) * summed_rows * width * part_bytes;
  return received + ops_.sum_parts(summed_rows * width).most;
}

device::OpBytes TensorRanksPlan::whole_own_rows(Size rows, Size own_width, Size whole_width) const {
  if (is_alone()) return {};
  const Size own_rows = most_own_rows(rows), result = own_rows * whole_width * kFloatBytes;
  return {.result = result, .most = result + own_rows * (whole_width - own_width) * kFloatBytes};
}

}  // namespace tandem::model
