// The matrix kernels with AMX: one instruction multiplies 16 rows by 16 columns over 32 bf16 of k.
//
// Its arithmetic for one element (TDPBF16PS, Intel's manual): the 16 products of even k and the 16 of odd k of the tile
// are each summed in rising order from 0, the two sums are added, and that is added to the element. Rows and columns do
// not meet, and a tile always begins at a multiple of 32 of k with what is past the end as 0, so an element is the same
// chain of roundings wherever it stands, and whichever operand is called A.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "device/cpu/gemm_inl.h"
#include "device/cpu/simd/avx512bf16.h"

namespace tandem::device::cpu {

struct GemmAmx {
  using Vector = Gemm<SimdAvx512Bf16, true>;
  using S = SimdAvx512Bf16;
  static constexpr int64_t kRows = 16, kEntries = 32;  // rows and bf16 entries of a tile of A; a tile of C is 16 x 16
  static constexpr int64_t kTile = kRows * kEntries;   // number of bf16 in a tile of A or B: 1 KiB
  static constexpr int64_t kBlockRows = 32, kPanel = Vector::kPanel;
  static constexpr int64_t kChunk = 256;  // a panel of 16 KiB stays in the first-level cache
  static_assert(kPanel == 32, "two tiles of columns");

  struct alignas(64) Config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  static void prepare() {
    static constexpr Config kConfig = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&kConfig);
  }
  // The compiler does not know that a tile load reads memory. This keeps earlier stores before the loads that follow,
  // and later stores after the loads.
  static void written() { __asm__ volatile("" ::: "memory"); }

  static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
  static int64_t at_most(int64_t n, int64_t limit) { return n < limit ? n : limit; }

  // Writes 16 rows (those past `rows` as 0) x 32 k (those past k_end as 0), one row after the other.
  static void pack_tile(const Matrix& x, int64_t row, int64_t rows, int64_t k, int64_t k_end, uint16_t* out) {
    if (x.k_major) {
      alignas(64) uint32_t pairs[16][16];
      for (int64_t j = 0; j < 16; ++j) {
        if (k + 2 * j < k_end) {
          Vector::pack_column_entry(x, row, rows, k + 2 * j, k_end, reinterpret_cast<float*>(pairs[j]));
        } else {
          S::store_words(pairs[j], _mm512_setzero_si512());
        }
      }
      const uint32_t* from[16];
      for (int j = 0; j < 16; ++j) from[j] = pairs[j];
      S::Words columns[16];
      S::transpose16(from, columns);
      for (int r = 0; r < 16; ++r) _mm512_storeu_si512(out + r * kEntries, columns[r]);
      return;
    }
    const int64_t valid = k_end - k;
    const __mmask32 mask = valid >= kEntries ? 0xFFFFFFFFu : (1u << valid) - 1u;
    const uint16_t* from = static_cast<const uint16_t*>(x.data) + k;
    for (int64_t r = 0; r < kRows; ++r)
      _mm512_storeu_si512(out + r * kEntries, r < rows
                                                  ? _mm512_maskz_loadu_epi16(mask, from + Vector::start_of(x, row + r))
                                                  : _mm512_setzero_si512());
  }

  // The packed layout is [k tile][half of the block][16][32].
  static void pack_a(const Matrix& a, const PackedBlock* blocks, int64_t num_blocks, int64_t, int64_t k0, int64_t kc) {
    for (int64_t t = 0; t < divide_up(kc, kEntries); ++t) {
      for (int64_t b = 0; b < num_blocks; ++b) {
        const int64_t halves = divide_up(blocks[b].rows, kRows);
        uint16_t* out = static_cast<uint16_t*>(blocks[b].out) + t * halves * kTile;
        for (int64_t h = 0; h < halves; ++h)
          pack_tile(a, blocks[b].m0 + h * kRows, at_most(blocks[b].rows - h * kRows, kRows), k0 + t * kEntries, k0 + kc,
                    out + h * kTile);
      }
    }
  }

  // Writes pairs, filled with 0 up to whole tiles of k.
  static void pack_b(const Matrix& b, int64_t n0, int64_t num_panels, int64_t n_end, int64_t k0, int64_t kc,
                     int64_t next, float* out, int64_t panel_floats) {
    Vector::pack_b(b, n0, num_panels, n_end, k0, kc, next, out, panel_floats);
    const int64_t used = divide_up(kc, 2), whole = divide_up(kc, kEntries) * kEntries / 2;
    for (int64_t p = 0; p < num_panels; ++p)
      for (int64_t i = used * kPanel; i < whole * kPanel; i += 16) S::store(out + p * panel_floats + i, S::zero());
  }

  // C tiles 0 and 1 (columns 0.., 16..) belong to the first 16 rows, 2 and 3 to the next; A is in 4 and 5, B in 6 and
  // 7.
  template <bool kTwoHalves>
  static void multiply(int64_t kc, const uint16_t* a, const float* b) {
    constexpr int64_t kHalves = kTwoHalves ? 2 : 1;
    for (int64_t t = 0; t < divide_up(kc, kEntries); ++t, a += kHalves * kTile, b += kPanel * 16) {
      // A comes from the second-level cache, so it is prefetched a tile ahead.
      for (int64_t i = 0; i < kHalves * kTile; i += kEntries) S::prefetch(a + kHalves * kTile + i);
      _tile_loadd(6, b, kPanel * 4);
      _tile_loadd(4, a, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + 16, kPanel * 4);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (kTwoHalves) {
        _tile_loadd(5, a + kTile, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }

  static void micro(int64_t rows, int64_t kc, const void* a, const void* b, float* c, int64_t ldc, bool from_zero) {
    // A half with fewer than 16 rows passes through memory of its own: tiles have 16.
    alignas(64) float spare[kRows * kPanel];
    const bool two = rows > kRows;
    const int64_t last_rows = two ? rows - kRows : rows;
    const bool partial = last_rows < kRows;
    float* last = partial ? spare : c + (two ? kRows * ldc : 0);
    const int64_t last_stride = (partial ? kPanel : ldc) * 4;
    if (from_zero) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    } else {
      if (partial) copy_rows(c + (two ? kRows * ldc : 0), ldc, spare, kPanel, last_rows);
      written();
      _tile_loadd(0, two ? c : last, two ? ldc * 4 : last_stride);
      _tile_loadd(1, (two ? c : last) + 16, two ? ldc * 4 : last_stride);
      if (two) {
        _tile_loadd(2, last, last_stride);
        _tile_loadd(3, last + 16, last_stride);
      }
    }
    written();
    if (two) {
      multiply<true>(kc, static_cast<const uint16_t*>(a), static_cast<const float*>(b));
      _tile_stored(0, c, ldc * 4);
      _tile_stored(1, c + 16, ldc * 4);
      _tile_stored(2, last, last_stride);
      _tile_stored(3, last + 16, last_stride);
    } else {
      multiply<false>(kc, static_cast<const uint16_t*>(a), static_cast<const float*>(b));
      _tile_stored(0, last, last_stride);
      _tile_stored(1, last + 16, last_stride);
    }
    if (partial) copy_rows(spare, kPanel, c + (two ? kRows * ldc : 0), ldc, last_rows);
  }
  static void copy_rows(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < kPanel; i += 16) S::store(to + r * to_stride + i, S::load(from + r * from_stride + i));
  }

  // For few rows the weights take the place of A, so that their tiles come from memory as they lie there, and the rows
  // take the place of B. The sums come out as columns.
  static void pack_few_rows(const Matrix& a, int64_t m0, int64_t rows, int64_t k, void* out) {
    Vector::pack_b(a, m0, 1, m0 + rows, 0, k, /*next=*/0, static_cast<float*>(out), 0);
  }
  // With kFirst, the weights come from memory, so a line is requested some tiles before its use, also the first ones of
  // the rows that follow these. It is brought to the second-level cache: in the first one, rows that are a multiple of
  // 2 KiB apart meet in few sets, where there is no room for the lines of 32 rows. Once the weights are in the
  // second-level cache the requests only cost: 1,460 against 2,270 GFLOP/s at 512 x 6144 x 1024 on two cores of a
  // Sapphire Rapids.
  template <bool kTwoHalves, bool kFirst>
  static void multiply_weights(int64_t k, const float* x, const uint16_t* const half[2], int64_t stride_bytes) {
    constexpr int64_t kAhead = 8 * kEntries;
    for (int64_t i = 0; i < k; i += kEntries, x += kPanel * 16) {
      const int64_t ahead_bytes = (i + kAhead) * 2 + (i + kAhead < k ? 0 : kPanel * stride_bytes - k * 2);
      for (int64_t r = 0; kFirst && r < kRows; ++r) {
        for (int64_t h = 0; h < 2; ++h)
          _mm_prefetch(reinterpret_cast<const char*>(half[h]) + ahead_bytes + r * stride_bytes, _MM_HINT_T1);
      }
      _tile_loadd(6, x, kPanel * 4);
      _tile_loadd(4, half[0] + i, stride_bytes);
      _tile_loadd(5, half[1] + i, stride_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kTwoHalves) {
        _tile_loadd(7, x + 16, kPanel * 4);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
  static void few_rows(int64_t rows, int64_t k, const void* a, const Matrix& b, int64_t n0, int64_t n_end, bool first,
                       float* c) {
    const uint16_t* weights = static_cast<const uint16_t*>(b.data);
    const float* x = static_cast<const float*>(a);
    const auto multiply = rows > kRows ? (first ? multiply_weights<true, true> : multiply_weights<true, false>)
                                       : (first ? multiply_weights<false, true> : multiply_weights<false, false>);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    written();
    if (n0 + kPanel <= n_end) {
      const uint16_t* half[2] = {weights + n0 * b.stride, weights + (n0 + kRows) * b.stride};
      multiply(k, x, half, b.stride * 2);
    } else {
      // In the last columns, rows past the end are 0 in a copy, one tile of k at a time.
      alignas(64) uint16_t copy[2 * kTile];
      const uint16_t* half[2] = {copy, copy + kTile};
      for (int64_t i = 0; i < k; i += kEntries, x += kPanel * 16) {
        for (int64_t h = 0; h < 2; ++h) {
          const int64_t column = n0 + h * kRows;
          pack_tile(b, column, column < n_end ? at_most(n_end - column, kRows) : 0, i, k, copy + h * kTile);
        }
        written();
        multiply(kEntries, x, half, 64);
        written();
      }
    }
    alignas(64) float sums[16][16];
    for (int64_t part = 0; part < 4; ++part) {  // parts of C: half of the columns, half of the rows
      const int64_t column = part / 2 * 16, row = part % 2 * 16;
      if (row >= rows) continue;
      switch (part) {
        case 0: _tile_stored(0, sums, 64); break;
        case 1: _tile_stored(1, sums, 64); break;
        case 2: _tile_stored(2, sums, 64); break;
        default: _tile_stored(3, sums, 64); break;
      }
      const uint32_t* from[16];
      for (int i = 0; i < 16; ++i) from[i] = reinterpret_cast<const uint32_t*>(sums[i]);
      S::Words columns[16];
      S::transpose16(from, columns);
      for (int64_t r = 0; r < at_most(rows - row, 16); ++r)
        S::store(c + (row + r) * kPanel + column, S::as_float(columns[r]));
    }
  }

  static GemmKernels table() {
    return {kBlockRows, kRows,  kPanel, kChunk, /*max_few_rows=*/512, kPanel,   /*task_blocks=*/32,
            prepare,    pack_a, pack_b, micro,  pack_few_rows,        few_rows, Vector::store};
  }
};

}  // namespace tandem::device::cpu
