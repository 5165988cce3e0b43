// A quantised matrix as operations take it: its bytes, and where its parts lie in them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "device/quantisation.h"

namespace tandem::device {

// The parts are in ascending order, without gaps, and have equally many columns. The bytes begin at a multiple of 64.
struct QuantisedMatrix {
  at::Tensor bytes;  // uint8, flat
  std::vector<QuantisedPart> parts;

  int64_t num_rows() const { return parts.back().row_begin + parts.back().num_rows; }
  int64_t num_columns() const { return parts.front().num_columns; }
};

}  // namespace tandem::device
