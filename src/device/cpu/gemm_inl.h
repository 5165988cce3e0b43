// Defines the matrix kernels behind GemmKernels, for one instruction set S. There is one order: every element of C sums
// over k = 0, 1, 2, ... with one fused multiply-add each (in pair mode, one bf16 dot instruction per k, k + 1). Lanes
// are columns, so no sum is ever split, and a row's bits cannot depend on the other rows.
#pragma once

#include <cstdint>

#include "device/cpu/checked_range.h"
#include "device/cpu/kernels.h"

namespace tandem::device::cpu {

// kPairs means that both operands are bf16 and S multiplies pairs of them.
template <class S, bool kPairs>
struct Gemm {
  using F = typename S::F;
  using Words = typename S::Words;
  static constexpr int64_t kPanel = 16 * S::kMicroVectors;
  static constexpr int64_t kChunk = 128;      // 16 KiB of a float panel of 32 columns: half the first-level cache
  static constexpr int64_t kTaskBlocks = 64;  // blocks of 12 rows and 128 entries: 384 KiB
  static constexpr int64_t kMaxFewRows = 4;   // 4 accumulators beside what a transposition takes
  // With pairs, up to 16 rows lie in the lanes. From about 100 rows on it is faster to pack the weights.
  static constexpr int64_t kRowStep = kPairs ? 16 : kMaxFewRows, kMaxRowsUnpacked = kPairs ? 64 : kMaxFewRows;

  static const uint32_t* words(const void* p) { return static_cast<const uint32_t*>(p); }
  // Returns the number of elements before a row.
  static int64_t start_of(const Matrix& x, int64_t row) { return (x.index == nullptr ? row : x.index[row]) * x.stride; }
  static float element(const Matrix& x, int64_t row, int64_t column) {
    const int64_t i = start_of(x, row) + column;
    if (x.elem == Elem::kF32) return static_cast<const float*>(x.data)[i];
    uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(x.data)[i]) << 16;
    float f;
    __builtin_memcpy(&f, &bits, 4);
    return f;
  }
  static uint32_t pair(const Matrix& x, int64_t row, int64_t k, int64_t k_end) {
    const uint16_t* p = static_cast<const uint16_t*>(x.data);
    if (x.k_major) {
      const uint32_t low = p[start_of(x, k) + row];
      return k + 1 < k_end ? low | (static_cast<uint32_t>(p[start_of(x, k + 1) + row]) << 16) : low;
    }
    const int64_t i = start_of(x, row) + k;
    const uint32_t low = p[i];
    return k + 1 < k_end ? low | (static_cast<uint32_t>(p[i + 1]) << 16) : low;
  }

  // Writes a tile, 64 bytes of each of 16 rows, as columns: see pack_rows.
  TANDEM_RANGES_ARE_CHECKED static void pack_tile(const uint32_t* const at[16], Elem elem, float* entries,
                                                  int64_t entry_stride) {
    Words column[16];
    S::transpose16(at, column);
    if (elem == Elem::kF32) {
#pragma GCC unroll 16
      for (int c = 0; c < 16; ++c) S::store(entries + c * entry_stride, S::as_float(column[c]));
    } else if constexpr (kPairs) {
      uint32_t* packed = reinterpret_cast<uint32_t*>(entries);
#pragma GCC unroll 16
      for (int c = 0; c < 16; ++c) S::store_words(packed + c * entry_stride, column[c]);
    } else {
#pragma GCC unroll 16
      for (int c = 0; c < 16; ++c) {
        S::store(entries + 2 * c * entry_stride, S::low_half(column[c]));
        S::store(entries + (2 * c + 1) * entry_stride, S::high_half(column[c]));
      }
    }
  }

  // Writes 16 rows (clamped to last_row) of an [m][k] matrix as columns: 16 lanes at out + entry * entry_stride. Rising
  // entries may overwrite the lanes past entry_stride of the one before.
  static void pack_rows(const Matrix& x, int64_t row0, int64_t last_row, int64_t lanes, int64_t k0, int64_t kc,
                        int64_t next, void* out, int64_t entry_stride) {
    const int64_t elem_bytes = x.elem == Elem::kF32 ? 4 : 2;
    const char* row[16];
    for (int r = 0; r < 16; ++r) {
      const int64_t clamped = row0 + r < last_row ? row0 + r : last_row;
      row[r] = static_cast<const char*>(x.data) + (start_of(x, clamped) + k0) * elem_bytes;
    }
    float* floats = static_cast<float*>(out);
    uint32_t* packed = static_cast<uint32_t*>(out);
    const int64_t per_tile = x.elem == Elem::kF32 ? 16 : 32, tiles = kc / per_tile;
    constexpr int64_t kPerEntry = kPairs ? 2 : 1;
    for (int r = 0; r < 16; ++r) check_range(row[r], static_cast<size_t>(tiles * per_tile * elem_bytes));
    if (tiles > 0) {
      const int64_t last = tiles * per_tile / kPerEntry - 1;
      check_range(floats, static_cast<size_t>(last * entry_stride + 16) * sizeof(float));
    }
    int64_t k = 0;
    for (; k < tiles * per_tile; k += per_tile) {
      const uint32_t* at[16];
      for (int r = 0; r < 16; ++r) at[r] = reinterpret_cast<const uint32_t*>(row[r] + k * elem_bytes);
      for (int r = 0; next != 0 && r < 16; ++r) S::prefetch(row[r] + (k + next) * elem_bytes);
      pack_tile(at, x.elem, floats + k / kPerEntry * entry_stride, entry_stride);
    }
    for (; k < kc; k += kPerEntry) {
      for (int64_t r = 0; r < lanes; ++r) {
        const int64_t clamped = row0 + r < last_row ? row0 + r : last_row;
        if (kPairs) {
          packed[k / 2 * entry_stride + r] = pair(x, clamped, k0 + k, k0 + kc);
        } else {
          floats[k * entry_stride + r] = element(x, clamped, k0 + k);
        }
      }
    }
  }

  // Writes 16 neighbouring columns of one k (or of k and k + 1) of a [k][n] matrix, those past `valid` as 0.
  static void pack_column_entry(const Matrix& x, int64_t column, int64_t valid, int64_t k, int64_t k_end,
                                float* entry) {
    const int64_t i = start_of(x, k) + column;
    if constexpr (kPairs) {
      const uint16_t* all = static_cast<const uint16_t*>(x.data);
      uint32_t* packed = reinterpret_cast<uint32_t*>(entry);
      if (valid >= 16 && k + 1 < k_end) {
        S::store_words(packed, S::interleave_bf16(all + i, all + start_of(x, k + 1) + column));
      } else {
        for (int64_t r = 0; r < 16; ++r) packed[r] = r < valid ? pair(x, column + r, k, k_end) : 0;
      }
    } else if (x.elem == Elem::kF32) {
      const float* p = static_cast<const float*>(x.data) + i;
      S::store(entry, valid >= 16 ? S::load(p) : S::load_partial(p, valid));
    } else {
      const uint16_t* p = static_cast<const uint16_t*>(x.data) + i;
      S::store(entry, valid >= 16 ? S::load(p) : S::load_partial(p, valid));
    }
  }

  static void pack_a(const Matrix& a, const PackedBlock* blocks, int64_t num_blocks, int64_t m_end, int64_t k0,
                     int64_t kc) {
    if (!a.k_major) {
      for (int64_t b = 0; b < num_blocks; ++b)
        pack_rows(a, blocks[b].m0, m_end - 1, blocks[b].rows, k0, kc, /*next=*/0, blocks[b].out, blocks[b].rows);
      return;
    }
    const int64_t step = kPairs ? 2 : 1;
    for (int64_t k = 0; k < kc; k += step) {
      for (int64_t b = 0; b < num_blocks; ++b)
        pack_column_entry(a, blocks[b].m0, m_end - blocks[b].m0, k0 + k, k0 + kc,
                          static_cast<float*>(blocks[b].out) + k / step * blocks[b].rows);
    }
  }

  static void pack_b(const Matrix& b, int64_t n0, int64_t num_panels, int64_t n_end, int64_t k0, int64_t kc,
                     int64_t next, float* out, int64_t panel_floats) {
    const int64_t vectors = num_panels * S::kMicroVectors;
    const auto at = [&](int64_t v) { return out + v / S::kMicroVectors * panel_floats + v % S::kMicroVectors * 16; };
    if (!b.k_major) {
      for (int64_t v = 0; v < vectors; ++v) {
        const int64_t first = n0 + 16 * v;
        pack_rows(b, first < n_end ? first : n_end - 1, n_end - 1, 16, k0, kc, next, at(v), kPanel);
      }
      return;
    }
    const int64_t step = kPairs ? 2 : 1;
    for (int64_t k = 0; k < kc; k += step) {
      for (int64_t v = 0; v < vectors; ++v) {
        const int64_t first = n0 + 16 * v;
        float* entry = at(v) + k / step * kPanel;
        if (first < n_end) {
          pack_column_entry(b, first, n_end - first, k0 + k, k0 + kc, entry);
        } else {
          S::store(entry, S::zero());
        }
      }
    }
  }

  template <int R>
  TANDEM_RANGES_ARE_CHECKED static void micro_rows(int64_t kc, const void* a, const void* b, float* c, int64_t ldc,
                                                   bool from_zero) {
    F acc[R][S::kMicroVectors];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < S::kMicroVectors; ++v) acc[r][v] = from_zero ? S::zero() : S::load(c + r * ldc + 16 * v);
    if constexpr (kPairs) {
      const uint32_t* pa = static_cast<const uint32_t*>(a);
      const uint32_t* pb = static_cast<const uint32_t*>(b);
      for (int64_t k = 0; k < kc; k += 2, pa += R, pb += kPanel) {
        Words w[S::kMicroVectors];
#pragma GCC unroll 4
        for (int v = 0; v < S::kMicroVectors; ++v) w[v] = S::load_words(pb + 16 * v);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const Words x = S::set1_word(pa[r]);
#pragma GCC unroll 4
          for (int v = 0; v < S::kMicroVectors; ++v) acc[r][v] = S::dot_bf16(acc[r][v], x, w[v]);
        }
      }
    } else {
      const float* pa = static_cast<const float*>(a);
      const float* pb = static_cast<const float*>(b);
      for (int64_t k = 0; k < kc; ++k, pa += R, pb += kPanel) {
        F w[S::kMicroVectors];
#pragma GCC unroll 4
        for (int v = 0; v < S::kMicroVectors; ++v) w[v] = S::load(pb + 16 * v);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const F x = S::set1(pa[r]);
#pragma GCC unroll 4
          for (int v = 0; v < S::kMicroVectors; ++v) acc[r][v] = S::fma(x, w[v], acc[r][v]);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < S::kMicroVectors; ++v) S::store(c + r * ldc + 16 * v, acc[r][v]);
  }

  template <int R>
  static void micro_dispatch(int64_t rows, int64_t kc, const void* a, const void* b, float* c, int64_t ldc,
                             bool from_zero) {
    if (rows == R) {
      const auto words = static_cast<size_t>(kPairs ? (kc + 1) / 2 : kc);
      check_range(a, words * R * sizeof(float));
      check_range(b, words * kPanel * sizeof(float));
      for (int64_t r = 0; r < R; ++r) check_range(c + r * ldc, kPanel * sizeof(float));
      micro_rows<R>(kc, a, b, c, ldc, from_zero);
    } else if constexpr (R > 1) {
      micro_dispatch<R - 1>(rows, kc, a, b, c, ldc, from_zero);
    }
  }
  static void micro(int64_t rows, int64_t kc, const void* a, const void* b, float* c, int64_t ldc, bool from_zero) {
    micro_dispatch<S::kMicroRows>(rows, kc, a, b, c, ldc, from_zero);
  }

  // Multiplies a tile, 64 bytes of each of 16 weight rows from byte `byte` on, by R packed inputs.
  template <int R>
  [[gnu::always_inline]] static void strip_tile(Elem elem, const void* a, int64_t byte, const char* const row[16],
                                                F acc[R]) {
    const uint32_t* at[16];
    for (int r = 0; r < 16; ++r) at[r] = reinterpret_cast<const uint32_t*>(row[r] + byte);
    Words column[16];
    S::transpose16(at, column);
    if constexpr (kPairs) {
      const uint32_t* x = static_cast<const uint32_t*>(a) + byte / 4 * R;
#pragma GCC unroll 16
      for (int c = 0; c < 16; ++c)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) acc[r] = S::dot_bf16(acc[r], S::set1_word(x[c * R + r]), column[c]);
    } else {
      const float* x = static_cast<const float*>(a) + byte / (elem == Elem::kF32 ? 4 : 2) * R;
      if (elem == Elem::kF32) {
#pragma GCC unroll 16
        for (int c = 0; c < 16; ++c)
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r) acc[r] = S::fma(S::set1(x[c * R + r]), S::as_float(column[c]), acc[r]);
        return;
      }
#pragma GCC unroll 16
      for (int c = 0; c < 16; ++c) {
        const F low = S::low_half(column[c]);
        const F high = S::high_half(column[c]);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          acc[r] = S::fma(S::set1(x[2 * c * R + r]), low, acc[r]);
          acc[r] = S::fma(S::set1(x[(2 * c + 1) * R + r]), high, acc[r]);
        }
      }
    }
  }

  // A strip: 16 rows of weights, those past n_end the last one again. Strips are read one after the other and each from
  // its first to its last tile of k, because rows that are a multiple of 2 KiB apart meet in few sets of the
  // first-level cache, where there is no room for the lines of two strips.
  struct Strip {
    const char* row[16];
    int64_t row_bytes, next_strip_bytes;

    [[gnu::always_inline]] Strip(const Matrix& b, int64_t n0, int64_t n_end, int64_t k_end) {
      const int64_t elem_bytes = b.elem == Elem::kF32 ? 4 : 2;
      row_bytes = k_end * elem_bytes;
      next_strip_bytes = 16 * b.stride * elem_bytes;
      for (int64_t r = 0; r < 16; ++r) {
        const int64_t n = n0 + r < n_end ? n0 + r : n_end - 1;
        row[r] = static_cast<const char*>(b.data) + n * b.stride * elem_bytes;
      }
    }
    // Weights come from memory once, so a tile is requested 8 tiles (8 KiB) before it is used, also the first ones of
    // the next strip.
    [[gnu::always_inline]] void request_after(int64_t byte) const {
      int64_t ahead = byte + 8 * 64;
      if (ahead >= row_bytes) ahead += next_strip_bytes - row_bytes;
      for (int r = 0; r < 16; ++r) S::prefetch(row[r] + ahead);
    }
  };

  template <int R>
  TANDEM_RANGES_ARE_CHECKED static void few_rows_fixed(int64_t k_end, const void* a, const Matrix& b, int64_t n0,
                                                       int64_t n_end, float* c) {
    for (int64_t s = 0; s < 2; ++s) {
      const Strip strip(b, n0 + 16 * s, n_end, k_end);
      F acc[R];
      for (int r = 0; r < R; ++r) acc[r] = S::zero();
      for (int64_t byte = 0; byte < strip.row_bytes; byte += 64) {
        strip.request_after(byte);
        strip_tile<R>(b.elem, a, byte, strip.row, acc);
      }
      for (int r = 0; r < R; ++r) S::store(c + r * 32 + 16 * s, acc[r]);
    }
  }

  // Computes up to 16 rows, which lie in the lanes, so that the weights need no transposition: a word of one column
  // meets all rows at once.
  static void rows_in_lanes(int64_t rows, int64_t k_end, const void* a, const Matrix& b, int64_t n0, int64_t n_end,
                            bool first, float* c) {
    for (int64_t s = 0; s < 2; ++s) {
      const Strip strip(b, n0 + 16 * s, n_end, k_end);
      F acc[16];
      for (int j = 0; j < 16; ++j) acc[j] = S::zero();
      for (int64_t byte = 0; byte < strip.row_bytes; byte += 64) {
        if (first) strip.request_after(byte);
        for (int64_t at = byte; at < byte + 64; at += 4) {
          const Words x = S::load_words(words(a) + at / 4 * 16);
          for (int j = 0; j < 16; ++j) {
            uint32_t word;
            __builtin_memcpy(&word, strip.row[j] + at, sizeof word);
            acc[j] = S::dot_bf16(acc[j], x, S::set1_word(word));
          }
        }
      }
      alignas(64) float columns[16][16];
      const uint32_t* from[16];
      for (int j = 0; j < 16; ++j) {
        S::store(columns[j], acc[j]);
        from[j] = reinterpret_cast<const uint32_t*>(columns[j]);
      }
      Words row[16];
      S::transpose16(from, row);
      for (int64_t r = 0; r < rows; ++r) S::store(c + r * 32 + 16 * s, S::as_float(row[r]));
    }
  }

  static void pack_few_rows(const Matrix& a, int64_t m0, int64_t rows, int64_t k, void* out) {
    const PackedBlock block{m0, rows <= kMaxFewRows ? rows : 16, out};
    pack_a(a, &block, 1, m0 + rows, 0, k);
  }
  static void few_rows(int64_t rows, int64_t k, const void* a, const Matrix& b, int64_t n0, int64_t n_end, bool first,
                       float* c) {
    if constexpr (kPairs) {
      if (rows > kMaxFewRows) return rows_in_lanes(rows, k, a, b, n0, n_end, first, c);
    }
    const int64_t elem_bytes = b.elem == Elem::kF32 ? 4 : 2, entries = kPairs ? k / 2 : k;
    for (int64_t n = n0; n < n0 + 32 && n < n_end; ++n)
      check_range(static_cast<const char*>(b.data) + n * b.stride * elem_bytes, static_cast<size_t>(k * elem_bytes));
    check_range(a, static_cast<size_t>(entries * rows) * sizeof(float));
    check_range(c, static_cast<size_t>(rows * 32) * sizeof(float));
    switch (rows) {
      case 1: return few_rows_fixed<1>(k, a, b, n0, n_end, c);
      case 2: return few_rows_fixed<2>(k, a, b, n0, n_end, c);
      case 3: return few_rows_fixed<3>(k, a, b, n0, n_end, c);
      default: return few_rows_fixed<4>(k, a, b, n0, n_end, c);
    }
  }

  template <typename T>
  static void store_as(const float* c, int64_t n, T* y, bool accumulate) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
      const F x = S::load(c + i);
      S::store(y + i, accumulate ? S::add(S::load(y + i), x) : x);
    }
    if (i < n) {
      const F x = S::load_partial(c + i, n - i);
      S::store_partial(y + i, accumulate ? S::add(S::load_partial(y + i, n - i), x) : x, n - i);
    }
  }
  static void store(const float* c, int64_t n, void* y, Elem elem, bool accumulate) {
    if (elem == Elem::kF32) {
      store_as(c, n, static_cast<float*>(y), accumulate);
    } else {
      store_as(c, n, static_cast<uint16_t*>(y), accumulate);
    }
  }

  static GemmKernels table() {
    return {S::kMicroRows,
            /*row_unit=*/1,
            kPanel,
            kChunk,
            kMaxRowsUnpacked,
            kRowStep,
            kTaskBlocks,
            /*prepare=*/nullptr,
            pack_a,
            pack_b,
            micro,
            pack_few_rows,
            few_rows,
            store};
  }
};

}  // namespace tandem::device::cpu
