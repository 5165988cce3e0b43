// AVX-512 with the bf16 dot product: two products of bf16 pairs added to a float32 lane by one instruction. Its rounding
// and order are the processor's, the same for every row.
#pragma once

#include "device/cpu/simd_avx512.h"

namespace tandem::device::cpu {

struct SimdAvx512Bf16 : SimdAvx512 {
  static constexpr bool kNativeBf16 = true;
  static Words set1_word(uint32_t w) { return _mm512_set1_epi32(static_cast<int>(w)); }
  static F dot_bf16(F acc, Words a, Words b) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};

}  // namespace tandem::device::cpu
