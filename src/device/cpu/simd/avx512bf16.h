// AVX-512 with the bf16 dot product: one instruction adds two products of bf16 pairs to a float32 lane. Its rounding
// and order are the processor's, the same for every row.
#pragma once

#include "device/cpu/simd/avx512.h"

namespace tandem::device::cpu {

struct SimdAvx512Bf16 : SimdAvx512 {
  static constexpr bool kNativeBf16 = true;
  [[gnu::always_inline]] static Words set1_word(uint32_t w) { return _mm512_set1_epi32(static_cast<int>(w)); }
  // This is one instruction instead of eight; it takes denormals for 0.
  static __m256i to_bf16(F x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }
  using SimdAvx512::store;
  using SimdAvx512::store_partial;
  static void store(uint16_t* p, F x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(x)); }
  static void store_partial(uint16_t* p, F x, int64_t n) { _mm256_mask_storeu_epi16(p, first(n), to_bf16(x)); }
  [[gnu::always_inline]] static F dot_bf16(F acc, Words a, Words b) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};

}  // namespace tandem::device::cpu
