// Turns rows of a quantised matrix into bfloat16, for one instruction set S. Each weight is made by itself
// (device/quantisation.h), so the bits do not depend on which rows and columns are asked for.
#pragma once

#include <cstdint>

#include "device/cpu/kernels.h"
#include "device/quantisation.h"

namespace tandem::device::cpu {

template <class S>
struct Dequantise {
  using F = typename S::F;

  static void rows(const QuantisedBytes& bytes, int64_t row, int64_t num_rows, int64_t column, int64_t num_columns,
                   uint16_t* out) {
    for (int64_t r = row; r < row + num_rows; ++r, out += num_columns) {
      const int64_t first = r * bytes.num_columns + column;
      if (bytes.quantisation == Quantisation::kInt8) {
        int8(bytes.codes + first, bytes.scales[r], num_columns, out);
      } else {
        nf4(bytes, first, num_columns, out);
      }
    }
  }

 private:
  static void nf4(const QuantisedBytes& bytes, int64_t first, int64_t count, uint16_t* out) {
    alignas(64) uint16_t values[16];  // of a block: what the codes stand for
    for (int64_t w = first; w < first + count;) {
      const int64_t block = w / kNf4Block, block_end = (block + 1) * kNf4Block;
      const int64_t end = block_end < first + count ? block_end : first + count;
      const float product = bytes.table[bytes.maxima[block]] * bytes.scales[block / kNf4Nested];
      S::store(values, S::mul(S::load(kNf4Values), S::set1(product + bytes.table[kNf4TableSize])));
      const uint8_t* codes = bytes.codes;
      if (w % kNf4Block == 0 && end == block_end) {
        S::look_up_64(values, codes + w / 2, out);
        out += kNf4Block;
        w = end;
        continue;
      }
      for (; w < end; ++w) *out++ = values[w % 2 == 0 ? codes[w / 2] >> 4 : codes[w / 2] & 15];
    }
  }

  static void int8(const uint8_t* bytes, float maximum, int64_t count, uint16_t* out) {
    const auto* const codes = reinterpret_cast<const int8_t*>(bytes);
    const auto weights = [scale = S::set1(maximum), step = S::set1(kInt8Step)](F numbers) {
      return S::mul(S::mul(numbers, scale), step);
    };
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) S::store(out + i, weights(S::load(codes + i)));
    if (i < count) S::store_partial(out + i, weights(S::load_partial(codes + i, count - i)), count - i);
  }
};

}  // namespace tandem::device::cpu
