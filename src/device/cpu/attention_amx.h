// The forward attention with AMX, for bf16, head dims that are multiples of 16, and no window. Scores and the weighted
// sum of values are products of tiles (gemm_amx.h), the softmax between them is the same as everywhere. A probability
// goes in as the sum of two bf16, so that its 16 bits leave the rounding to the result.
//
// Tiles begin at multiples of 32 of the head dim and of the keys. A key that a row does not see has a probability of 0
// and a finite value, which adds nothing: so here too a row's bits depend on its own keys by position alone.
#pragma once

#include "device/cpu/attention_inl.h"
#include "device/cpu/gemm_amx.h"
#include "device/cpu/simd/avx512.h"

namespace tandem::device::cpu {

struct AttentionAmx {
  using Vector = Attention<SimdAvx512>;
  using Rows = Vector::Rows<uint16_t>;
  using S = SimdAvx512Bf16;
  static constexpr int64_t kTileRows = GemmAmx::kRows, kTileEntries = GemmAmx::kEntries;
  static constexpr int64_t kValueKeys = 256;  // keys whose values are packed at once: 64 KiB at a head dim of 128

  static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

  // The scratch of one call. Vectors (row x head) go in groups of 16, the rows of a tile. Entries past the last vector,
  // past the head dim or past the keys are 0 or give results that nobody reads.
  struct Scratch {
    int64_t groups, wide, keys;  // wide, keys: head dim and keys rounded up to tiles
    uint16_t* queries;           // [groups][wide / 32][16][32]
    uint16_t* key_pairs;         // [2 blocks][wide / 32][16 pairs of the head dim][16 keys][2]
    uint16_t* value_pairs;       // [kValueKeys / 2][wide][2 keys]
    float* scores;        // [groups * 16][keys]; later probabilities, bf16 [groups * 16][keys / 32][high, low][32]
    float* out;           // [groups * 16][wide]
    float* inverse_sums;  // [groups * 16]

    Scratch(const Rows& rows, float* memory)
        : groups(GemmAmx::divide_up(rows.num_vectors, kTileRows)),
          wide(round_up(rows.args.head_dim, kTileEntries)),
          keys(round_up(rows.max_keys, kTileEntries)) {
      const auto address = reinterpret_cast<uintptr_t>(memory);
      float* p =
          memory + ((address + 63) / 64 * 64 - address) / sizeof(float);  // a tile row then lies in one cache line
      const auto take = [&p](int64_t floats) { return (p += floats) - floats; };
      queries = reinterpret_cast<uint16_t*>(take(groups * kTileRows * wide / 2));
      key_pairs = reinterpret_cast<uint16_t*>(take(wide * 16));
      value_pairs = reinterpret_cast<uint16_t*>(take(kValueKeys * wide / 2));
      out = take(groups * kTileRows * wide);
      scores = take(groups * kTileRows * keys);
      inverse_sums = take(groups * kTileRows);
    }
  };

  // Computes C (tiles 0 to 3, two by two) += A B over `steps` tiles of A, kPerB of them for each of B. a1 (with kTwo)
  // and b1 are the second halves.
  template <bool kTwo, int64_t kPerB>
  static void multiply(int64_t steps, const uint16_t* a0, const uint16_t* a1, int64_t a_bytes, int64_t a_step,
                       const uint16_t* b0, const uint16_t* b1, int64_t b_bytes, int64_t b_step) {
    for (int64_t i = 0; i < steps; ++i) {
      _tile_loadd(4, a0 + i * a_step, a_bytes);
      _tile_loadd(6, b0 + i / kPerB * b_step, b_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b1 + i / kPerB * b_step, b_bytes);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (kTwo) {
        _tile_loadd(5, a1 + i * a_step, a_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }

  static void pack_queries(const Rows& rows, const Scratch& s) {
    const int64_t width = rows.args.head_dim;
    for (int64_t i = 0; i < rows.num_vectors; ++i) {
      const uint16_t* from = static_cast<const uint16_t*>(rows.args.q) + rows.offset_of(i);
      uint16_t* to = s.queries + i / kTileRows * kTileRows * s.wide + i % kTileRows * kTileEntries;
      for (int64_t d = 0; d < width; d += kTileEntries, to += GemmAmx::kTile) {
        const __mmask32 valid = width - d >= kTileEntries ? 0xFFFFFFFFu : (1u << (width - d)) - 1u;
        _mm512_store_si512(to, _mm512_maskz_loadu_epi16(valid, from + d));
      }
    }
  }

  static void pack_keys(const uint16_t* tile, int64_t width, int64_t wide, uint16_t* out) {
    auto* words = reinterpret_cast<uint32_t*>(out);
    for (int64_t d = 0; d < width; d += 2, words += 16)
      S::store_words(words, S::interleave_bf16(tile + d * 16, tile + (d + 1) * 16));
    for (int64_t d = width; d < wide; d += 2, words += 16) S::store_words(words, _mm512_setzero_si512());
  }

  template <bool kTwo>
  static void score_groups(const Scratch& s, int64_t group, int64_t key) {
    const uint16_t* a = s.queries + group * kTileRows * s.wide;
    float* c = s.scores + group * kTileRows * s.keys + key;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    multiply<kTwo, 1>(s.wide / kTileEntries, a, a + kTileRows * s.wide, 64, GemmAmx::kTile, s.key_pairs,
                      s.key_pairs + 16 * s.wide, 64, GemmAmx::kTile);
    _tile_stored(0, c, s.keys * 4);
    _tile_stored(1, c + 16, s.keys * 4);
    if constexpr (kTwo) {
      _tile_stored(2, c + kTileRows * s.keys, s.keys * 4);
      _tile_stored(3, c + kTileRows * s.keys + 16, s.keys * 4);
    }
  }
  static void score(const Rows& rows, const Scratch& s) {
    for (int64_t key = 0; key < rows.max_keys; key += 32) {
      for (int64_t b = 0; b < 2 && key + 16 * b < rows.max_keys; ++b)
        pack_keys(rows.key_tile(key / 16 + b), rows.args.head_dim, s.wide, s.key_pairs + b * 16 * s.wide);
      GemmAmx::written();
      int64_t g = 0;
      for (; g + 2 <= s.groups; g += 2) score_groups<true>(s, g, key);
      if (g < s.groups) score_groups<false>(s, g, key);
    }
    GemmAmx::written();
  }

  // Writes a row's probabilities as two bf16 each, in place; 0 for the keys it does not see.
  static void split_probabilities(float* row, int64_t n, int64_t keys) {
    for (int64_t j = 0; j < keys; j += kTileEntries) {
      auto* high = reinterpret_cast<uint16_t*>(row + j);
      const S::F p[2] = {j < n ? S::load(row + j) : S::zero(), j + 16 < n ? S::load(row + j + 16) : S::zero()};
      for (int i = 0; i < 2; ++i) S::store(high + 16 * i, p[i]);
      for (int i = 0; i < 2; ++i) S::store(high + kTileEntries + 16 * i, S::sub(p[i], S::load(high + 16 * i)));
    }
  }

  static void pack_values(const Rows& rows, const Scratch& s, int64_t begin, int64_t end) {
    const int64_t width = rows.args.head_dim;
    const __m512i odd_only = _mm512_set1_epi32(0xFFFF);
    for (int64_t j = begin; j < end; j += 2) {
      uint32_t* to = reinterpret_cast<uint32_t*>(s.value_pairs) + (j - begin) / 2 * s.wide;
      if (j >= rows.max_keys) {  // there are no such keys, and perhaps no such block
        for (int64_t d = 0; d < width; d += 16) S::store_words(to + d, _mm512_setzero_si512());
        continue;
      }
      const uint16_t* from = rows.value_tile(j / 16) + j % 16 * width;
      const bool both = j + 1 < rows.max_keys;  // the slot after the last key may hold anything
      for (int64_t d = 0; d < width; d += 16) {
        const S::Words pair = S::interleave_bf16(from + d, from + width + d);
        S::store_words(to + d, both ? pair : _mm512_and_si512(pair, odd_only));
      }
    }
  }

  template <bool kTwo>
  static void add_values(const Scratch& s, int64_t group, int64_t d, int64_t begin, int64_t end) {
    const int64_t p_row = s.keys * 2;  // number of bf16 in a row of scores
    const uint16_t* p = reinterpret_cast<const uint16_t*>(s.scores) + group * kTileRows * p_row + 2 * begin;
    float* c = s.out + group * kTileRows * s.wide + d;
    float* c1 = c + kTileRows * s.wide;
    if (begin == 0) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    } else {
      _tile_loadd(0, c, s.wide * 4);
      _tile_loadd(1, c + 16, s.wide * 4);
      if constexpr (kTwo) {
        _tile_loadd(2, c1, s.wide * 4);
        _tile_loadd(3, c1 + 16, s.wide * 4);
      }
    }
    multiply<kTwo, 2>(2 * (end - begin) / kTileEntries, p, p + kTileRows * p_row, p_row * 2, kTileEntries,
                      s.value_pairs + d * 2, s.value_pairs + (d + 16) * 2, s.wide * 4, kTileEntries * s.wide);
    _tile_stored(0, c, s.wide * 4);
    _tile_stored(1, c + 16, s.wide * 4);
    if constexpr (kTwo) {
      _tile_stored(2, c1, s.wide * 4);
      _tile_stored(3, c1 + 16, s.wide * 4);
    }
  }
  static void sum_values(const Rows& rows, const Scratch& s) {
    for (int64_t begin = 0; begin < s.keys; begin += kValueKeys) {
      const int64_t end = GemmAmx::at_most(begin + kValueKeys, s.keys);
      pack_values(rows, s, begin, end);
      GemmAmx::written();
      for (int64_t d = 0; d < s.wide; d += 32) {
        int64_t g = 0;
        for (; g + 2 <= s.groups; g += 2) add_values<true>(s, g, d, begin, end);
        if (g < s.groups) add_values<false>(s, g, d, begin, end);
      }
      GemmAmx::written();
    }
  }

  static void forward(const AttentionArgs& args, int64_t row_begin, int64_t row_end, int64_t kv_head, float* scratch) {
    const int64_t width = args.head_dim;
    const bool is_served = args.elem == Elem::kBF16 && width % 16 == 0 && args.window == 0;
    if (!is_served) return Vector::forward(args, row_begin, row_end, kv_head, scratch);
    const Rows rows(args, row_begin, row_end, kv_head);
    const Scratch s(rows, scratch);
    const float scale = 1.0F / std::sqrt(static_cast<float>(width));
    GemmAmx::prepare();
    pack_queries(rows, s);
    score(rows, s);
    for (int64_t i = 0; i < rows.num_vectors; ++i) {
      Vector::softmax(s.scores + i * s.keys, /*first=*/0, rows.keys_of(i), scale, s.inverse_sums + i, rows.lse_of(i));
      split_probabilities(s.scores + i * s.keys, rows.keys_of(i), s.keys);
    }
    sum_values(rows, s);
    for (int64_t i = 0; i < rows.num_vectors; ++i) {
      uint16_t* to = static_cast<uint16_t*>(args.out) + rows.offset_of(i);
      for (int64_t d = 0; d < width; d += 16)
        S::store(to + d, S::mul(S::load(s.out + i * s.wide + d), S::set1(s.inverse_sums[i])));
    }
  }
};

}  // namespace tandem::device::cpu
