// Sixteen floats in four registers of NEON, which every aarch64 processor has (see simd/scalar.h for what each function
// means). Its fma() rounds once, so its bits are those of AVX2 and AVX-512.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace tandem::device::cpu {

struct SimdNeon {
  static constexpr int kMicroRows = 6;  // 6 x 4 accumulators, 4 weights, 1 broadcast: 29 of 32 registers
  static constexpr bool kNativeBf16 = false;
  static constexpr int kMicroVectors = 1;
  using F = float32x4x4_t;

  template <typename Op>
  static F each(Op op) {
    return {{op(0), op(1), op(2), op(3)}};
  }
  static float32x4_t widen(uint16x4_t x) { return vreinterpretq_f32_u32(vshll_n_u16(x, 16)); }
  // Rounds to nearest even; any NaN becomes 0x7FC0.
  static uint16x4_t narrow(float32x4_t x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint16x4_t rounded = vshrn_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF))), 16);
    return vbsl_u16(vmovn_u32(vceqq_f32(x, x)), rounded, vdup_n_u16(0x7FC0));
  }

  [[gnu::always_inline]] static F zero() { return set1(0.0F); }
  [[gnu::always_inline]] static F set1(float x) {
    return each([&](int) { return vdupq_n_f32(x); });
  }
  [[gnu::always_inline]] static F load(const float* p) {
    return each([&](int i) { return vld1q_f32(p + 4 * i); });
  }
  static F load(const uint16_t* p) {
    return each([&](int i) { return widen(vld1_u16(p + 4 * i)); });
  }
  static F load(const int8_t* p) {
    const int8x16_t bytes = vld1q_s8(p);
    const int16x8_t halves[2] = {vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes))};
    return each([&](int i) {
      return vcvtq_f32_s32(vmovl_s16(i % 2 == 0 ? vget_low_s16(halves[i / 2]) : vget_high_s16(halves[i / 2])));
    });
  }
  template <typename T>
  static F load_partial(const T* p, int64_t n) {
    T buffer[16] = {};
    for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
    return load(buffer);
  }
  [[gnu::always_inline]] static void store(float* p, F x) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.val[i]);
  }
  static void store(uint16_t* p, F x) {
    for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, narrow(x.val[i]));
  }
  template <typename T>
  static void store_partial(T* p, F x, int64_t n) {
    T buffer[16];
    store(buffer, x);
    for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
  }

  static F add(F a, F b) {
    return each([&](int i) { return vaddq_f32(a.val[i], b.val[i]); });
  }
  static F sub(F a, F b) {
    return each([&](int i) { return vsubq_f32(a.val[i], b.val[i]); });
  }
  static F mul(F a, F b) {
    return each([&](int i) { return vmulq_f32(a.val[i], b.val[i]); });
  }
  static F div(F a, F b) {
    return each([&](int i) { return vdivq_f32(a.val[i], b.val[i]); });
  }
  static F sqrt(F a) {
    return each([&](int i) { return vsqrtq_f32(a.val[i]); });
  }
  [[gnu::always_inline]] static F fma(F a, F b, F c) {
    return each([&](int i) { return vfmaq_f32(c.val[i], a.val[i], b.val[i]); });
  }
  // NEON's own maximum and minimum give NaN where a is NaN; these give b.
  static float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static float32x4_t smaller(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
  static F max(F a, F b) {
    return each([&](int i) { return larger(a.val[i], b.val[i]); });
  }
  static F min(F a, F b) {
    return each([&](int i) { return smaller(a.val[i], b.val[i]); });
  }
  static F round(F a) {
    return each([&](int i) { return vrndnq_f32(a.val[i]); });
  }
  static F scale2(F a, F n) {
    return each([&](int i) {
      const int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n.val[i]), vdupq_n_s32(127)), 23);
      return vmulq_f32(a.val[i], vreinterpretq_f32_s32(power));
    });
  }
  static F select_less(F a, F b, F yes, F no) {
    return each([&](int i) { return vbslq_f32(vcltq_f32(a.val[i], b.val[i]), yes.val[i], no.val[i]); });
  }
  static F keep_first(F x, int64_t n, F other) {
    float xs[16], os[16];
    store(xs, x);
    store(os, other);
    for (int64_t i = n; i < 16; ++i) xs[i] = os[i];
    return load(xs);
  }

  static float reduce_sum(F x) {
    const float32x4_t s4 = vaddq_f32(vaddq_f32(x.val[0], x.val[2]), vaddq_f32(x.val[1], x.val[3]));
    const float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
    return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
  }
  static float reduce_max(F x) {
    float lanes[4];
    vst1q_f32(lanes, larger(larger(x.val[0], x.val[2]), larger(x.val[1], x.val[3])));
    for (int i = 1; i < 4; ++i) lanes[0] = lanes[0] > lanes[i] ? lanes[0] : lanes[i];
    return lanes[0];
  }

  using Words = uint32x4x4_t;
  [[gnu::always_inline]] static F as_float(Words w) {
    return each([&](int i) { return vreinterpretq_f32_u32(w.val[i]); });
  }
  [[gnu::always_inline]] static F low_half(Words w) {
    return each([&](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(w.val[i], 16)); });
  }
  [[gnu::always_inline]] static F high_half(Words w) {
    return each([&](int i) { return vreinterpretq_f32_u32(vandq_u32(w.val[i], vdupq_n_u32(0xFFFF0000u))); });
  }
  [[gnu::always_inline]] static void store_words(uint32_t* p, Words w) {
    for (int i = 0; i < 4; ++i) vst1q_u32(p + 4 * i, w.val[i]);
  }
  [[gnu::always_inline]] static Words load_words(const uint32_t* p) {
    return {{vld1q_u32(p), vld1q_u32(p + 4), vld1q_u32(p + 8), vld1q_u32(p + 12)}};
  }
  static uint32x4_t low_pairs(uint32x4_t a, uint32x4_t b) {
    return vreinterpretq_u32_u64(vzip1q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)));
  }
  static uint32x4_t high_pairs(uint32x4_t a, uint32x4_t b) {
    return vreinterpretq_u32_u64(vzip2q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)));
  }
  // Transposes sixteen blocks of 4 x 4: words c..c+3 of rows r..r+3 become lanes r..r+3 of out[c]..out[c+3].
  [[gnu::always_inline]] static void transpose16(const uint32_t* const rows[16], Words out[16]) {
    for (int r = 0; r < 4; ++r) {
      for (int c = 0; c < 16; c += 4) {
        const uint32x4_t row0 = vld1q_u32(rows[4 * r] + c), row1 = vld1q_u32(rows[4 * r + 1] + c),
                         row2 = vld1q_u32(rows[4 * r + 2] + c), row3 = vld1q_u32(rows[4 * r + 3] + c);
        const uint32x4_t even01 = vtrn1q_u32(row0, row1), odd01 = vtrn2q_u32(row0, row1),
                         even23 = vtrn1q_u32(row2, row3), odd23 = vtrn2q_u32(row2, row3);
        out[c].val[r] = low_pairs(even01, even23);
        out[c + 1].val[r] = low_pairs(odd01, odd23);
        out[c + 2].val[r] = high_pairs(even01, even23);
        out[c + 3].val[r] = high_pairs(odd01, odd23);
      }
    }
  }
  static Words interleave_bf16(const uint16_t* a, const uint16_t* b) {
    const auto one = [&](int i) {
      return vorrq_u32(vmovl_u16(vld1_u16(a + 4 * i)), vshll_n_u16(vld1_u16(b + 4 * i), 16));
    };
    return {{one(0), one(1), one(2), one(3)}};
  }
  static void look_up_64(const uint16_t* values, const uint8_t* codes, uint16_t* out) {
    // A table looks up bytes, so the low and the high bytes of the values are looked up by themselves.
    const uint8x16x2_t bytes = vld2q_u8(reinterpret_cast<const uint8_t*>(values));
    for (int i = 0; i < 2; ++i) {
      const uint8x16_t packed = vld1q_u8(codes + 16 * i);
      const uint8x16_t even = vshrq_n_u8(packed, 4), odd = vandq_u8(packed, vdupq_n_u8(15));
      for (int part = 0; part < 2; ++part) {
        const uint8x16_t index = part == 0 ? vzip1q_u8(even, odd) : vzip2q_u8(even, odd);
        const uint8x16x2_t words = {{vqtbl1q_u8(bytes.val[0], index), vqtbl1q_u8(bytes.val[1], index)}};
        vst2q_u8(reinterpret_cast<uint8_t*>(out + 32 * i + 16 * part), words);
      }
    }
  }
  [[gnu::always_inline]] static void prefetch(const void* p) { __builtin_prefetch(p); }
};

}  // namespace tandem::device::cpu
