// Describes a box of a tensor as rows and columns of a matrix, with the places of its elements in the whole tensor. No
// torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "weights/layout.h"

namespace tandem::weights {

// Rows [row_begin, row_begin + num_rows) and columns [column_begin, column_begin + num_columns) of a row-major matrix.
// A vector is a matrix of one column. `element` counts the box's own elements, row-major; `index` those of the matrix.
struct Box {
  int64_t row_begin = 0, num_rows = 0;
  int64_t column_begin = 0, num_columns = 0, whole_columns = 0;

  int64_t num_elements() const { return num_rows * num_columns; }
  bool has_whole_rows() const { return num_columns == whole_columns; }
  int64_t index_of(int64_t element) const {
    return (row_begin + element / num_columns) * whole_columns + column_begin + element % num_columns;
  }
  // Returns how many of its elements lie before that index.
  int64_t elements_before(int64_t index) const;
};

// Returns the slice's box within its HF tensor. Dims after the second count as columns; throws BugError if the slice is
// cut in one of those.
Box box_of(const Slice& slice);

// Elements that are adjacent both in the box and in the whole tensor.
struct Run {
  int64_t element = 0, index = 0, count = 0;
};

// Visits the box's elements [first, first + count) in as few runs as possible.
template <typename F>
void for_each_run(const Box& box, int64_t first, int64_t count, F f) {
  const int64_t end = first + count;
  while (first < end) {
    const int64_t to_row_end = box.num_columns - first % box.num_columns;
    const int64_t elements = box.has_whole_rows() ? end - first : std::min(to_row_end, end - first);
    f(Run{.element = first, .index = box.index_of(first), .count = elements});
    first += elements;
  }
}

}  // namespace tandem::weights
