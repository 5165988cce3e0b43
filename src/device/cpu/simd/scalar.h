// Says in plain C++ what each SIMD function means: sixteen floats at a time, as four vectors of the four that any
// processor has. The AVX headers are the same text in wider registers. This is also the fallback on a processor without
// AVX2; its fma() rounds twice, so its bits are its own.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace tandem::device::cpu {

struct SimdScalar {
  static constexpr int kMicroRows = 2;  // rows x (16 * vectors) outputs that the micro kernel holds in registers
  static constexpr bool kNativeBf16 = false;
  static constexpr int kMicroVectors = 1;
  // Vectors of four lanes (the vector extension of GCC and Clang): arithmetic, comparisons and ?: go lane by lane.
  using Floats = float __attribute__((vector_size(16)));
  using Bits = uint32_t __attribute__((vector_size(16)));
  struct F {
    Floats v[4];
  };
  struct Words {
    Bits v[4];
  };

  // Calls op for each of the four vectors, or for each of the sixteen lanes.
  template <typename Op>
  static F each(Op op) {
    F r;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) r.v[i] = op(i);
    return r;
  }
  template <typename Op>
  static F each_lane(Op op) {
    F r;
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r.v[i / 4][i % 4] = op(i);
    return r;
  }
  static float lane(const F& x, int i) { return x.v[i / 4][i % 4]; }
  static Floats as_floats(Bits bits) { return reinterpret_cast<Floats>(bits); }

  static float bits_to_float(uint32_t bits) {
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
  }
  static uint32_t float_to_bits(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    return bits;
  }
  static float widen(float x) { return x; }
  static float widen(int8_t x) { return static_cast<float>(x); }
  static float widen(uint16_t x) { return bits_to_float(static_cast<uint32_t>(x) << 16); }
  // These round to nearest even; any NaN becomes 0x7FC0.
  static void narrow(float x, float* out) { *out = x; }
  static void narrow(float x, uint16_t* out) {
    const uint32_t bits = float_to_bits(x);
    *out = x != x ? uint16_t{0x7FC0} : static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  }

  static F zero() { return set1(0.0F); }
  static F set1(float x) {
    return each([&](int) { return Floats{x, x, x, x}; });
  }
  template <typename T>
  static F load(const T* p) {
    T values[16];
    std::memcpy(values, p, sizeof values);
    return each_lane([&](int i) { return widen(values[i]); });
  }
  // Loads the first n lanes from memory, the others as 0. Reads nothing past p[n - 1].
  template <typename T>
  static F load_partial(const T* p, int64_t n) {
    return each_lane([&](int i) { return i < n ? widen(p[i]) : 0.0F; });
  }
  template <typename T>
  static void store(T* p, F x) {
    T values[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) narrow(lane(x, i), values + i);
    std::memcpy(p, values, sizeof values);
  }
  template <typename T>
  static void store_partial(T* p, F x, int64_t n) {
    T values[16];
    store(values, x);
    std::memcpy(p, values, static_cast<size_t>(n) * sizeof(T));
  }

  static F add(F a, F b) {
    return each([&](int i) { return a.v[i] + b.v[i]; });
  }
  static F sub(F a, F b) {
    return each([&](int i) { return a.v[i] - b.v[i]; });
  }
  static F mul(F a, F b) {
    return each([&](int i) { return a.v[i] * b.v[i]; });
  }
  static F div(F a, F b) {
    return each([&](int i) { return a.v[i] / b.v[i]; });
  }
  static F sqrt(F a) {
    return each_lane([&](int i) { return std::sqrt(lane(a, i)); });
  }
  static F fma(F a, F b, F c) {
    return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
  }
  // max() and min() give b where a or b is NaN, as the processor's instructions do.
  static F max(F a, F b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static F min(F a, F b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  static F round(F a) {
    return each_lane([&](int i) { return std::nearbyint(lane(a, i)); });
  }
  // Returns a * 2^n for integral n in [-126, 127]; a NaN in a stays one whatever n is.
  static F scale2(F a, F n) {
    return each_lane([&](int i) {
      const int32_t power = lane(n, i) == lane(n, i) ? static_cast<int32_t>(lane(n, i)) : 0;  // NaN has no integer
      return lane(a, i) * bits_to_float(static_cast<uint32_t>(power + 127) << 23);
    });
  }
  static F select_less(F a, F b, F yes, F no) {
    return each([&](int i) { return a.v[i] < b.v[i] ? yes.v[i] : no.v[i]; });
  }
  static F keep_first(F x, int64_t n, F other) {
    return each_lane([&](int i) { return i < n ? lane(x, i) : lane(other, i); });
  }
  // A horizontal sum has this one order: lanes i and i + 8, then 4, 2, 1 apart.
  static float reduce_sum(F x) {
    const Floats sum = (x.v[0] + x.v[2]) + (x.v[1] + x.v[3]);
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
  }
  static float reduce_max(F x) {
    float largest = lane(x, 0);
#pragma GCC unroll 16
    for (int i = 1; i < 16; ++i) largest = largest > lane(x, i) ? largest : lane(x, i);
    return largest;
  }

  static F as_float(Words w) {
    return each([&](int i) { return as_floats(w.v[i]); });
  }
  // A word holds two bf16: the even element in the low half, the odd one in the high half.
  static F low_half(Words w) {
    return each([&](int i) { return as_floats(w.v[i] << 16); });
  }
  static F high_half(Words w) {
    return each([&](int i) { return as_floats(w.v[i] & 0xFFFF0000u); });
  }
  static void store_words(uint32_t* p, Words w) { std::memcpy(p, w.v, sizeof w.v); }
  static Words load_words(const uint32_t* p) {
    Words w;
    std::memcpy(w.v, p, sizeof w.v);
    return w;
  }
  // In out[c], lane r is word c of row r. Rows may be unaligned.
  static void transpose16(const uint32_t* const rows[16], Words out[16]) {
    uint32_t columns[16][16];
    for (int r = 0; r < 16; ++r) {
      uint32_t row[16];
      std::memcpy(row, rows[r], sizeof row);
#pragma GCC unroll 16
      for (int c = 0; c < 16; ++c) columns[c][r] = row[c];
    }
    for (int c = 0; c < 16; ++c) out[c] = load_words(columns[c]);
  }
  // In lane i the low half is a[i] and the high half b[i].
  static Words interleave_bf16(const uint16_t* a, const uint16_t* b) {
    uint32_t words[16];
    for (int i = 0; i < 16; ++i) words[i] = a[i] | (static_cast<uint32_t>(b[i]) << 16);
    return load_words(words);
  }
  // Writes values[code] for 64 codes of four bits, the first of two in the high half of a byte.
  static void look_up_64(const uint16_t* values, const uint8_t* codes, uint16_t* out) {
    for (int i = 0; i < 32; ++i) {
      out[2 * i] = values[codes[i] >> 4];
      out[2 * i + 1] = values[codes[i] & 15];
    }
  }
  static void prefetch(const void*) {}
};

}  // namespace tandem::device::cpu
