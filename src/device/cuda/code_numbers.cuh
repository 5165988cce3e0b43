// The numbers that codes of quantised weights stand for (device/quantisation.h), in kernels.
#pragma once

#include <cstdint>

#include "device/quantisation.h"

namespace tandem::device::cuda {

struct Nf4Values {
  float of[16];
};
constexpr Nf4Values copied_values() {
  Nf4Values values = {};
  for (int i = 0; i < 16; ++i) values.of[i] = kNf4Values[i];
  return values;
}
static __constant__ Nf4Values nf4_of_code = copied_values();

// Returns the absolute maximum of a block of NF4, given its code and what its 256 blocks share.
__device__ inline float maximum_of_block(const float* table, uint8_t code, float scale) {
  return __fadd_rn(__fmul_rn(table[code], scale), table[kNf4TableSize]);
}

// Returns weight `i` of four of int8, which are the bytes of a word. 2^23 + 128 + code is exact in float32.
template <int i>
__device__ inline float int8_weight(uint32_t codes, float maximum) {
  constexpr uint32_t kBeyond = 0x4B000000;  // 2^23
  const uint32_t bits = __byte_perm(codes ^ 0x80808080U, kBeyond, 0x7440 | i);
  const float code = __fadd_rn(__uint_as_float(bits), -8388736.0F);
  return __fmul_rn(__fmul_rn(code, maximum), kInt8Step);
}

}  // namespace tandem::device::cuda
