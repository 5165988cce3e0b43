// Sixteen floats in two AVX2 registers (see simd/scalar.h for what each function means).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "device/cpu/simd/look_up_x86.h"

namespace tandem::device::cpu {

struct SimdAvx2 {
  static constexpr int kMicroRows = 6;  // 6 x 2 accumulators, 2 weights, 1 broadcast: 15 of 16 registers
  static constexpr bool kNativeBf16 = false;
  static constexpr int kMicroVectors = 1;
  struct F {
    __m256 a, b;
  };

  [[gnu::always_inline]] static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  [[gnu::always_inline]] static F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  [[gnu::always_inline]] static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static __m256 widen(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
  static F load(const uint16_t* p) {
    return {widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  static F load(const int8_t* p) {
    const auto eight = [p](int64_t first) {
      return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + first))));
    };
    return {eight(0), eight(8)};
  }
  template <typename T>
  static F load_partial(const T* p, int64_t n) {
    alignas(32) T buffer[16] = {};
    for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
    return load(buffer);
  }
  [[gnu::always_inline]] static void store(float* p, F x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
  }
  static __m128i narrow(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    rounded = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7FC0), nan);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0xD8);
    return _mm256_castsi256_si128(packed);
  }
  static void store(uint16_t* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(x.a));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), narrow(x.b));
  }
  template <typename T>
  static void store_partial(T* p, F x, int64_t n) {
    alignas(32) T buffer[16];
    store(buffer, x);
    for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
  }

  static F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static F sqrt(F x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
  [[gnu::always_inline]] static F fma(F x, F y, F z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  static F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static F round(F x) {
    constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, kMode), _mm256_round_ps(x.b, kMode)};
  }
  static __m256 power2(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
  }
  static F scale2(F x, F n) { return {_mm256_mul_ps(x.a, power2(n.a)), _mm256_mul_ps(x.b, power2(n.b))}; }
  static F select_less(F x, F y, F yes, F no) {
    return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
            _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
  }
  static F keep_first(F x, int64_t n, F other) {
    alignas(32) float xs[16], os[16];
    store(xs, x);
    store(os, other);
    for (int64_t i = n; i < 16; ++i) xs[i] = os[i];
    return load(xs);
  }

  static float reduce_sum(F x) {
    const __m256 s8 = _mm256_add_ps(x.a, x.b);
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
  }
  static float reduce_max(F x) {
    const __m256 m8 = _mm256_max_ps(x.a, x.b);
    const __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
    const __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
    return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2)));
  }

  struct Words {
    __m256i a, b;
  };
  [[gnu::always_inline]] static F as_float(Words w) { return {_mm256_castsi256_ps(w.a), _mm256_castsi256_ps(w.b)}; }
  [[gnu::always_inline]] static F low_half(Words w) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(w.a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(w.b, 16))};
  }
  [[gnu::always_inline]] static F high_half(Words w) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
    return {_mm256_castsi256_ps(_mm256_and_si256(w.a, mask)), _mm256_castsi256_ps(_mm256_and_si256(w.b, mask))};
  }
  [[gnu::always_inline]] static void store_words(uint32_t* p, Words w) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), w.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), w.b);
  }
  [[gnu::always_inline]] static Words load_words(const uint32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
  }
  // Transposes an 8 x 8 block: out[c] lane r = word c of row r.
  [[gnu::always_inline]] static void transpose8(const uint32_t* const rows[8], __m256i out[8]) {
    __m256 a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(rows[i]));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
      b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      a[4 * i] = _mm256_shuffle_ps(b[4 * i], b[4 * i + 2], 0x44);
      a[4 * i + 1] = _mm256_shuffle_ps(b[4 * i], b[4 * i + 2], 0xEE);
      a[4 * i + 2] = _mm256_shuffle_ps(b[4 * i + 1], b[4 * i + 3], 0x44);
      a[4 * i + 3] = _mm256_shuffle_ps(b[4 * i + 1], b[4 * i + 3], 0xEE);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      out[j] = _mm256_castps_si256(_mm256_permute2f128_ps(a[j], a[4 + j], 0x20));
      out[4 + j] = _mm256_castps_si256(_mm256_permute2f128_ps(a[j], a[4 + j], 0x31));
    }
  }
  [[gnu::always_inline]] static void transpose16(const uint32_t* const rows[16], Words out[16]) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const uint32_t* shifted[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) shifted[i] = rows[i] + 8 * half;
      __m256i top[8], bottom[8];
      transpose8(shifted, top);
      transpose8(shifted + 8, bottom);
#pragma GCC unroll 8
      for (int c = 0; c < 8; ++c) out[8 * half + c] = {top[c], bottom[c]};
    }
  }
  static Words interleave_bf16(const uint16_t* a, const uint16_t* b) {
    Words w;
    const auto one = [](const uint16_t* low, const uint16_t* high) {
      const __m256i l = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low)));
      const __m256i h = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(high)));
      return _mm256_or_si256(l, _mm256_slli_epi32(h, 16));
    };
    w.a = one(a, b);
    w.b = one(a + 8, b + 8);
    return w;
  }
  static void look_up_64(const uint16_t* values, const uint8_t* codes, uint16_t* out) {
    look_up_64_by_shuffles<SimdAvx2>(values, codes, out);
  }
  [[gnu::always_inline]] static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
};

}  // namespace tandem::device::cpu
