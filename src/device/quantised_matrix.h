// A quantised matrix as operations take it: its bytes, and where its parts lie in them.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "device/quantisation.h"

namespace tandem::device {

// The parts are in ascending order, without gaps, and have equally many columns. The bytes begin at a multiple of 64.
struct QuantisedMatrix {
  at::Tensor bytes;  // uint8, flat
  std::vector<QuantisedPart> parts;

  int64_t num_rows() const { return parts.back().row_begin + parts.back().num_rows; }
  int64_t num_columns() const { return parts.front().num_columns; }
  // Returns the part that begins at a row. BugError if none does.
  const QuantisedPart& part_at(int64_t row) const {
    const auto part = std::ranges::find(parts, row, &QuantisedPart::row_begin);
    TANDEM_CHECK(part != parts.end(), "no part of a quantised matrix begins at row", row);
    return *part;
  }
  // Returns the bytes of a matrix in host memory.
  std::byte* data() const {
    TANDEM_CHECK(bytes.is_cpu(), "a quantised matrix is written on the host alone");
    return static_cast<std::byte*>(bytes.data_ptr());
  }
};

}  // namespace tandem::device
