// A sum whose bits no shape can change, in plain ATen.
#pragma once

#include <ATen/core/Tensor.h>

namespace tandem::device {

// Sums the last dim (kept, of size 1) by halves, with element-wise additions alone. Overwrites x.
inline at::Tensor sum_by_halves(const at::Tensor& x) {
  int64_t width = x.size(-1);
  while (width > 1) {
    const int64_t half = width / 2;
    width -= half;
    x.narrow(-1, 0, half).add_(x.narrow(-1, width, half));
  }
  return x.narrow(-1, 0, 1);
}

}  // namespace tandem::device
