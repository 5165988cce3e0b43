// Defines the matrix kernels behind GemmKernels, for one instruction set S. There is one order: every element of C sums
// over k = 0, 1, 2, ... with one fused multiply-add each (in pair mode, one bf16 dot instruction per k, k + 1). Lanes
// are columns, so no sum is ever split, and a row's bits cannot depend on the other rows.
#pragma once

#include <cstdint>

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
  static constexpr int64_t kMaxFewRows = 4;   // 2 x 4 accumulators beside the 16 registers of a transposition

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

  // Writes 16 rows (clamped to last_row) of an [m][k] matrix as columns: 16 lanes at out + entry * entry_stride. Rising
  // entries may overwrite the lanes past entry_stride of the one before.
  static void pack_rows(const Matrix& x, int64_t row0, int64_t last_row, int64_t lanes, int64_t k0, int64_t kc,
                        void* out, int64_t entry_stride) {
    const int64_t elem_bytes = x.elem == Elem::kF32 ? 4 : 2;
    const char* row[16];
    for (int r = 0; r < 16; ++r) {
      const int64_t clamped = row0 + r < last_row ? row0 + r : last_row;
      row[r] = static_cast<const char*>(x.data) + (start_of(x, clamped) + k0) * elem_bytes;
    }
    float* floats = static_cast<float*>(out);
    uint32_t* packed = static_cast<uint32_t*>(out);
    const int64_t per_tile = x.elem == Elem::kF32 ? 16 : 32;
    int64_t k = 0;
    for (; k + per_tile <= kc; k += per_tile) {
      const uint32_t* at[16];
      for (int r = 0; r < 16; ++r) at[r] = reinterpret_cast<const uint32_t*>(row[r] + k * elem_bytes);
      Words column[16];
      S::transpose16(at, column);
      if (x.elem == Elem::kF32) {
        for (int c = 0; c < 16; ++c) S::store(floats + (k + c) * entry_stride, S::as_float(column[c]));
      } else if (kPairs) {
        for (int c = 0; c < 16; ++c) S::store_words(packed + (k / 2 + c) * entry_stride, column[c]);
      } else {
        for (int c = 0; c < 16; ++c) {
          S::store(floats + (k + 2 * c) * entry_stride, S::low_half(column[c]));
          S::store(floats + (k + 2 * c + 1) * entry_stride, S::high_half(column[c]));
        }
      }
    }
    for (; k < kc; k += kPairs ? 2 : 1) {
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
        pack_rows(a, blocks[b].m0, m_end - 1, blocks[b].rows, k0, kc, blocks[b].out, blocks[b].rows);
      return;
    }
    const int64_t step = kPairs ? 2 : 1;
    for (int64_t k = 0; k < kc; k += step) {
      for (int64_t b = 0; b < num_blocks; ++b)
        pack_column_entry(a, blocks[b].m0, m_end - blocks[b].m0, k0 + k, k0 + kc,
                          static_cast<float*>(blocks[b].out) + k / step * blocks[b].rows);
    }
  }

  static void pack_b(const Matrix& b, int64_t n0, int64_t num_panels, int64_t n_end, int64_t k0, int64_t kc, float* out,
                     int64_t panel_floats) {
    const int64_t vectors = num_panels * S::kMicroVectors;
    const auto at = [&](int64_t v) { return out + v / S::kMicroVectors * panel_floats + v % S::kMicroVectors * 16; };
    if (!b.k_major) {
      for (int64_t v = 0; v < vectors; ++v) {
        const int64_t first = n0 + 16 * v;
        pack_rows(b, first < n_end ? first : n_end - 1, n_end - 1, 16, k0, kc, at(v), kPanel);
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
  static void micro_rows(int64_t kc, const void* a, const void* b, float* c, int64_t ldc, bool from_zero) {
    F acc[R][S::kMicroVectors];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < S::kMicroVectors; ++v) acc[r][v] = from_zero ? S::zero() : S::load(c + r * ldc + 16 * v);
    if constexpr (kPairs) {
      const uint32_t* pa = static_cast<const uint32_t*>(a);
      const uint32_t* pb = static_cast<const uint32_t*>(b);
      for (int64_t k = 0; k < kc; k += 2, pa += R, pb += kPanel) {
        Words w[S::kMicroVectors];
        for (int v = 0; v < S::kMicroVectors; ++v) w[v] = S::load_words(pb + 16 * v);
        for (int r = 0; r < R; ++r) {
          const Words x = S::set1_word(pa[r]);
          for (int v = 0; v < S::kMicroVectors; ++v) acc[r][v] = S::dot_bf16(acc[r][v], x, w[v]);
        }
      }
    } else {
      const float* pa = static_cast<const float*>(a);
      const float* pb = static_cast<const float*>(b);
      for (int64_t k = 0; k < kc; ++k, pa += R, pb += kPanel) {
        F w[S::kMicroVectors];
        for (int v = 0; v < S::kMicroVectors; ++v) w[v] = S::load(pb + 16 * v);
        for (int r = 0; r < R; ++r) {
          const F x = S::set1(pa[r]);
          for (int v = 0; v < S::kMicroVectors; ++v) acc[r][v] = S::fma(x, w[v], acc[r][v]);
        }
      }
    }
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < S::kMicroVectors; ++v) S::store(c + r * ldc + 16 * v, acc[r][v]);
  }

  template <int R>
  static void micro_dispatch(int64_t rows, int64_t kc, const void* a, const void* b, float* c, int64_t ldc,
                             bool from_zero) {
    if (rows == R) {
      micro_rows<R>(kc, a, b, c, ldc, from_zero);
    } else if constexpr (R > 1) {
      micro_dispatch<R - 1>(rows, kc, a, b, c, ldc, from_zero);
    }
  }
  static void micro(int64_t rows, int64_t kc, const void* a, const void* b, float* c, int64_t ldc, bool from_zero) {
    micro_dispatch<S::kMicroRows>(rows, kc, a, b, c, ldc, from_zero);
  }

  // Computes one 16-column strip of a few_rows call: multiplies 16 weight rows by R packed inputs, tile by tile.
  template <int R>
  static void strip_tile(Elem elem, const void* a, int64_t k, const char* const row[16], F acc[R]) {
    const int64_t elem_bytes = elem == Elem::kF32 ? 4 : 2;
    const uint32_t* at[16];
    for (int r = 0; r < 16; ++r) at[r] = reinterpret_cast<const uint32_t*>(row[r] + k * elem_bytes);
    Words column[16];
    S::transpose16(at, column);
    if constexpr (kPairs) {
      const uint32_t* x = static_cast<const uint32_t*>(a) + k / 2 * R;
      for (int c = 0; c < 16; ++c)
        for (int r = 0; r < R; ++r) acc[r] = S::dot_bf16(acc[r], S::set1_word(x[c * R + r]), column[c]);
    } else {
      const float* x = static_cast<const float*>(a) + k * R;
      if (elem == Elem::kF32) {
        for (int c = 0; c < 16; ++c)
          for (int r = 0; r < R; ++r) acc[r] = S::fma(S::set1(x[c * R + r]), S::as_float(column[c]), acc[r]);
        return;
      }
      for (int c = 0; c < 16; ++c) {
        const F low = S::low_half(column[c]);
        const F high = S::high_half(column[c]);
        for (int r = 0; r < R; ++r) {
          acc[r] = S::fma(S::set1(x[2 * c * R + r]), low, acc[r]);
          acc[r] = S::fma(S::set1(x[(2 * c + 1) * R + r]), high, acc[r]);
        }
      }
    }
  }

  template <int R>
  static void few_rows_fixed(int64_t k_end, const void* a, const Matrix& b, int64_t n0, int64_t n_end, float* c) {
    const int64_t elem_bytes = b.elem == Elem::kF32 ? 4 : 2;
    const int64_t per_tile = b.elem == Elem::kF32 ? 16 : 32;
    // Weights come from memory once, so a line is requested this many tiles before it is used.
    constexpr int64_t kAheadTiles = 6;
    const char* row[2][16];
    for (int s = 0; s < 2; ++s) {
      for (int r = 0; r < 16; ++r) {
        const int64_t n = n0 + 16 * s + r < n_end ? n0 + 16 * s + r : n_end - 1;
        row[s][r] = static_cast<const char*>(b.data) + n * b.stride * elem_bytes;
      }
    }
    F acc[2][R];
    for (int s = 0; s < 2; ++s)
      for (int r = 0; r < R; ++r) acc[s][r] = S::zero();
    for (int64_t k = 0; k < k_end; k += per_tile) {
      const int64_t ahead = (k + kAheadTiles * per_tile) * elem_bytes;
      for (int s = 0; s < 2; ++s) {
        for (int r = 0; r < 16; ++r) S::prefetch(row[s][r] + ahead);
        strip_tile<R>(b.elem, a, k, row[s], acc[s]);
      }
    }
    for (int s = 0; s < 2; ++s)
      for (int r = 0; r < R; ++r) S::store(c + r * 32 + 16 * s, acc[s][r]);
  }

  static void pack_few_rows(const Matrix& a, int64_t m0, int64_t rows, int64_t k, void* out) {
    const PackedBlock block{m0, rows, out};
    pack_a(a, &block, 1, m0 + rows, 0, k);
  }
  static void few_rows(int64_t rows, int64_t k, const void* a, const Matrix& b, int64_t n0, int64_t n_end,
                       bool /*first: rows are so few that there is one call*/, float* c) {
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
    return {S::kMicroRows,       /*row_unit=*/1, kPanel, kChunk, kMaxFewRows,   kMaxFewRows, kTaskBlocks,
            /*prepare=*/nullptr, pack_a,         pack_b, micro,  pack_few_rows, few_rows,    store};
  }
};

}  // namespace tandem::device::cpu
