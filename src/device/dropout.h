// The rule by which dropout keeps an element: a function of keys and of the element's column, without state. So the
// same element is kept in a micro-batch of any other samples, on any rank, in a block that is run again, and after a
// resume.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "base/rng.h"

namespace tandem::device {

// Names the elements that one call drops.
struct Dropout {
  double rate = 0.0;    // the share of elements that are dropped, in [0, 1)
  uint64_t stream = 0;  // tells the matrices of a model apart: each drops other elements of the same row

  // An element is dropped if its 32 random bits are below this: the share is `rate`, to within 2^-33.
  uint32_t threshold() const { return static_cast<uint32_t>(std::min(std::round(rate * 0x1.0p32), 0x1.0p32 - 1.0)); }
  // Kept elements are multiplied by 1 / (1 - rate), so that the expected sum stays.
  float scale() const { return static_cast<float>(1.0 / (1.0 - rate)); }
};

// One call of the generator serves so many neighbouring columns.
inline constexpr int64_t kDropoutColumns = 4;

// Writes the random bits of columns [4 block, 4 block + 4) of the row that has this key.
TANDEM_HOST_DEVICE inline void dropout_bits(uint64_t row_key, uint64_t stream, int64_t block, uint32_t (&bits)[4]) {
  bits[0] = static_cast<uint32_t>(block);
  bits[1] = static_cast<uint32_t>(static_cast<uint64_t>(block) >> 32);
  bits[2] = static_cast<uint32_t>(stream);
  bits[3] = static_cast<uint32_t>(stream >> 32);
  base::philox_rounds(row_key, bits);
}

// Returns whether one element is kept.
inline bool is_kept(const Dropout& dropout, uint64_t row_key, int64_t column) {
  uint32_t bits[4];
  dropout_bits(row_key, dropout.stream, column / kDropoutColumns, bits);
  return bits[column % kDropoutColumns] >= dropout.threshold();
}

// Computes y[c] = x[c] * dropout.scale() where the element is kept, rounded once to T, and 0 elsewhere.
template <typename T>
void drop_row(const Dropout& dropout, uint64_t row_key, const T* x, T* y, int64_t width) {
  const uint32_t threshold = dropout.threshold();
  const float scale = dropout.scale();
  for (int64_t begin = 0; begin < width; begin += kDropoutColumns) {
    uint32_t bits[4];
    dropout_bits(row_key, dropout.stream, begin / kDropoutColumns, bits);
    for (int64_t i = 0; i < kDropoutColumns && begin + i < width; ++i) {
      y[begin + i] = bits[i] >= threshold ? static_cast<T>(static_cast<float>(x[begin + i]) * scale) : T(0.0F);
    }
  }
}

}  // namespace tandem::device
