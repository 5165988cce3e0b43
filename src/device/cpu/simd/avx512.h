// Sixteen floats in one AVX-512 register: the unit that every CPU kernel is written in (see simd/scalar.h for what
// each function means).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "device/cpu/simd/look_up_x86.h"

namespace tandem::device::cpu {

struct SimdAvx512 {
  static constexpr int kMicroRows = 12;  // 12 x 2 accumulators, 2 weights, 1 broadcast: 27 of 32 registers
  static constexpr bool kNativeBf16 = false;
  static constexpr int kMicroVectors = 2;
  using F = __m512;

  [[gnu::always_inline]] static F zero() { return _mm512_setzero_ps(); }
  [[gnu::always_inline]] static F set1(float x) { return _mm512_set1_ps(x); }
  [[gnu::always_inline]] static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load(const uint16_t* p) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
  }
  static F load(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static __mmask16 first(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static F load_partial(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static F load_partial(const uint16_t* p, int64_t n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(n), p)), 16));
  }
  static F load_partial(const int8_t* p, int64_t n) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first(n), p)));
  }
  [[gnu::always_inline]] static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static void store_partial(float* p, F x, int64_t n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static __m256i to_bf16(F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7FC0)));
  }
  static void store(uint16_t* p, F x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(x)); }
  static void store_partial(uint16_t* p, F x, int64_t n) { _mm256_mask_storeu_epi16(p, first(n), to_bf16(x)); }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F sqrt(F a) { return _mm512_sqrt_ps(a); }
  [[gnu::always_inline]] static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // Returns a * 2^n for integral n in [-126, 127].
  static F scale2(F a, F n) {
    return _mm512_mul_ps(
        a, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23)));
  }
  static F select_less(F a, F b, F yes, F no) {
    return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), yes);
  }
  static F keep_first(F x, int64_t n, F other) { return _mm512_mask_mov_ps(other, first(n), x); }

  static float reduce_sum(F x) {
    const __m256 low = _mm512_castps512_ps256(x);
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
    const __m256 s8 = _mm256_add_ps(low, high);
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
  }
  static float reduce_max(F x) { return _mm512_reduce_max_ps(x); }

  // Turns rows of 16 32-bit words (stride in words) into column vectors: out[c] lane r = word c of row r.
  [[gnu::always_inline]] static void transpose16(const uint32_t* const rows[16], __m512i out[16]) {
    __m512i a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(rows[i]);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
      b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      a[4 * i] = _mm512_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
      a[4 * i + 1] = _mm512_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
      a[4 * i + 2] = _mm512_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
      a[4 * i + 3] = _mm512_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
    }
    // In a[4i + j], the 128-bit lane q holds words (4q + j) of rows 4i .. 4i+3.
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512i p0 = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88);  // lanes 0,2 of rows 0-3, 4-7
      const __m512i p1 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88);
      const __m512i p2 = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xDD);  // lanes 1,3
      const __m512i p3 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xDD);
      out[j] = _mm512_shuffle_i32x4(p0, p1, 0x88);
      out[8 + j] = _mm512_shuffle_i32x4(p0, p1, 0xDD);
      out[4 + j] = _mm512_shuffle_i32x4(p2, p3, 0x88);
      out[12 + j] = _mm512_shuffle_i32x4(p2, p3, 0xDD);
    }
  }
  using Words = __m512i;
  [[gnu::always_inline]] static F as_float(Words w) { return _mm512_castsi512_ps(w); }
  // These return the two bf16 of each word as floats: even element (low half), odd element (high half).
  [[gnu::always_inline]] static F low_half(Words w) { return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)); }
  [[gnu::always_inline]] static F high_half(Words w) {
    return _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
  [[gnu::always_inline]] static void store_words(uint32_t* p, Words w) { _mm512_storeu_si512(p, w); }
  [[gnu::always_inline]] static Words load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
  // In lane i the low half is a[i] and the high half b[i].
  static Words interleave_bf16(const uint16_t* a, const uint16_t* b) {
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a)));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(b)));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
  }
  static void look_up_64(const uint16_t* values, const uint8_t* codes, uint16_t* out) {
    look_up_64_by_shuffles<SimdAvx512>(values, codes, out);
  }
  [[gnu::always_inline]] static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
};

}  // namespace tandem::device::cpu
