#include "weights/box.h"

#include "base/check.h"

namespace tandem::weights {
namespace {

int64_t product(const std::vector<int64_t>& shape, size_t from) {
  int64_t result = 1;
  for (size_t d = from; d < shape.size(); ++d) result *= shape[d];
  return result;
}

}  // namespace

int64_t Box::elements_before(int64_t index) const {
  const int64_t row = index / whole_columns - row_begin;
  if (row < 0) return 0;
  if (row >= num_rows) return num_elements();
  return row * num_columns + std::clamp<int64_t>(index % whole_columns - column_begin, 0, num_columns);
}

Box box_of(const Slice& slice) {
  const std::vector<int64_t>& whole = slice.hf_shape();
  const std::vector<int64_t> begin = slice.hf_begin();
  if (slice.shape.empty()) return {.num_rows = 1, .num_columns = 1, .whole_columns = 1};
  for (size_t d = 2; d < whole.size(); ++d) TANDEM_CHECK_EQ(slice.shape[d], whole[d], slice.hf_name);
  const int64_t per_column = product(whole, 2);
  return {.row_begin = begin[0],
          .num_rows = slice.shape[0],
          .column_begin = whole.size() > 1 ? begin[1] * per_column : 0,
          .num_columns = product(slice.shape, 1),
          .whole_columns = product(whole, 1)};
}

}  // namespace tandem::weights
