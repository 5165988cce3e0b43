// Computes attention of query rows over KV blocks of 16 positions, forward and backward.
//
// A block holds, per kv head, K as [K][16] (lanes are keys, so a score is a running sum over the head dim with no
// horizontal step) and V as [16][K] (lanes are the head dim). For one query row: scores sum over d = 0, 1, ...; the
// softmax's sum adds lane j mod 16 over rising j, then across lanes; the output sums over j = 0, 1, 2, ... With a
// window both begin at the first key that the row sees, whose lane its position decides. So the bits depend on the keys
// by position alone: not on the block table, the other rows of the call, or how the keys arrived.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "device/cpu/kernels.h"
#include "device/cpu/math_inl.h"

namespace tandem::device::cpu {

template <class S>
struct Attention {
  using F = typename S::F;
  using M = Math<S>;
  static constexpr float kMinusInfinity = -__builtin_inff();
  // Vectors of 16 in a line of the caches. Tiles lie apart in memory, where the processor foresees nothing, so the
  // lines of the next tile are requested while one is read.
  template <typename T>
  static constexpr int kLineVectors = 4 / static_cast<int>(sizeof(T));

  template <typename T>
  static void write_token(const T* k, const T* v, T* block, int64_t offset, int64_t kv_heads, int64_t width) {
    T* values = block + kv_heads * width * 16;
    for (int64_t g = 0; g < kv_heads; ++g) {
      for (int64_t d = 0; d < width; ++d) block[(g * width + d) * 16 + offset] = k[g * width + d];
      __builtin_memcpy(values + (g * 16 + offset) * width, v + g * width, sizeof(T) * static_cast<size_t>(width));
    }
  }
  static void kv_write(const void* k, const void* v, void* block, int64_t offset, int64_t kv_heads, int64_t width,
                       Elem elem) {
    with_elem(elem == Elem::kF32, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      write_token(static_cast<const T*>(k), static_cast<const T*>(v), static_cast<T*>(block), offset, kv_heads, width);
    });
  }

  // The rows of one call: their query vectors (row x head of this kv head) and which keys each sees: [first_key_of(),
  // keys_of()).
  template <typename T>
  struct Rows {
    const AttentionArgs& args;
    int64_t row_begin, num_rows, kv_head;
    int64_t heads;                    // number of query heads of this kv head
    int64_t num_vectors;              // num_rows * heads
    int64_t max_keys, min_first_key;  // of all rows
    const int32_t* blocks;

    Rows(const AttentionArgs& a, int64_t begin, int64_t end, int64_t kv_head)
        : args(a),
          row_begin(begin),
          num_rows(end - begin),
          kv_head(kv_head),
          heads(a.num_heads / a.num_kv_heads),
          num_vectors(num_rows * heads),
          max_keys(0),
          min_first_key(INT64_MAX),
          blocks(a.block_table + static_cast<int64_t>(a.sequence_of_row[begin]) * a.max_blocks) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t n = static_cast<int64_t>(a.row_position[r]) + 1;
        if (n > max_keys) max_keys = n;
        const int64_t first = first_key(n);
        if (first < min_first_key) min_first_key = first;
      }
    }
    int64_t first_key(int64_t keys) const { return args.window == 0 || keys <= args.window ? 0 : keys - args.window; }
    int64_t first_key_of(int64_t vector) const { return first_key(keys_of(vector)); }
    int64_t keys_of(int64_t vector) const {
      return static_cast<int64_t>(args.row_position[row_begin + vector / heads]) + 1;
    }
    int64_t head_of(int64_t vector) const { return kv_head * heads + vector % heads; }
    // Returns the element offset of a vector in [T, H, K].
    int64_t offset_of(int64_t vector) const {
      return ((row_begin + vector / heads) * args.num_heads + head_of(vector)) * args.head_dim;
    }
    float* lse_of(int64_t vector) const {
      return args.lse == nullptr ? nullptr : args.lse + (row_begin + vector / heads) * args.num_heads + head_of(vector);
    }
    const T* key_tile(int64_t tile) const {
      return static_cast<const T*>(args.kv) + blocks[tile] * args.block_stride + kv_head * args.head_dim * 16;
    }
    const T* value_tile(int64_t tile) const { return key_tile(tile) + args.num_kv_heads * args.head_dim * 16; }
    // Returns a tile of keys, or, past the last one, the first tile of values.
    const T* tile_after_keys(int64_t tile) const { return tile * 16 < max_keys ? key_tile(tile) : value_tile(0); }
  };

  template <typename T>
  static void load_vectors(const Rows<T>& rows, const void* from, float* to) {
    const int64_t width = rows.args.head_dim;
    for (int64_t i = 0; i < rows.num_vectors; ++i) {
      const T* p = static_cast<const T*>(from) + rows.offset_of(i);
      for (int64_t d = 0; d < width; d += 16) M::store(to + i * width + d, M::load(p + d, width - d), width - d);
    }
  }

  // Multiplies Q query vectors with N consecutive tiles: Q * N independent running sums keep the multipliers busy.
  template <int Q, int N, typename T>
  static void score_tiles(const Rows<T>& rows, const float* q, int64_t tile, float* scores, int64_t stride) {
    const int64_t width = rows.args.head_dim;
    const T* tiles[N];
    const T* next[N];
    for (int n = 0; n < N; ++n) {
      tiles[n] = rows.key_tile(tile + n);
      next[n] = rows.tile_after_keys(tile + N + n);
    }
    F acc[Q][N];
    for (int i = 0; i < Q; ++i)
      for (int n = 0; n < N; ++n) acc[i][n] = S::zero();
    for (int64_t d = 0; d < width; ++d) {
      if (d % kLineVectors<T> == 0) {
        for (int n = 0; n < N; ++n) S::prefetch(next[n] + d * 16);
      }
      F k[N];
      for (int n = 0; n < N; ++n) k[n] = S::load(tiles[n] + d * 16);
      for (int i = 0; i < Q; ++i) {
        const F x = S::set1(q[i * width + d]);
        for (int n = 0; n < N; ++n) acc[i][n] = S::fma(x, k[n], acc[i][n]);
      }
    }
    for (int i = 0; i < Q; ++i)
      for (int n = 0; n < N; ++n) S::store(scores + i * stride + (tile + n) * 16, acc[i][n]);
  }

  template <int Q, typename T>
  static void score_vectors(const Rows<T>& rows, const float* q, int64_t tile, int64_t num_tiles, float* scores,
                            int64_t stride) {
    constexpr int kTiles = 8 / Q;
    for (; tile + kTiles <= num_tiles; tile += kTiles) score_tiles<Q, kTiles>(rows, q, tile, scores, stride);
    for (; tile < num_tiles; ++tile) score_tiles<Q, 1>(rows, q, tile, scores, stride);
  }

  // Turns scores of keys [first, n), yet to be scaled, into probabilities (unnormalised, against the maximum) in place.
  // Also gives 1 / sum, and logsumexp where `lse` is not null. A score that is not finite, -inf too, makes all of them
  // NaN: taken as it is, -inf would look like a key that is not there.
  static void softmax(float* scores, int64_t first, int64_t n, float scale, float* inverse_sum, float* lse) {
    const int64_t begin = first / 16 * 16;  // the lanes before `first` become keys that are not there
    F top = S::set1(kMinusInfinity);
    const F none = top, by = S::set1(scale);
    F not_finite = S::zero();  // sum of 0 times each score: 0, or NaN
    for (int64_t j = begin; j < n; j += 16) {
      F s = S::load(scores + j);
      F seen = s;
      if (j < first) {
        seen = S::keep_first(S::zero(), first - j, s);
        s = S::keep_first(none, first - j, s);
        S::store(scores + j, s);
      }
      if (n - j < 16) {
        seen = S::keep_first(seen, n - j, S::zero());
        s = S::keep_first(s, n - j, none);
        S::store(scores + j, s);
      }
      not_finite = S::fma(seen, S::zero(), not_finite);
      top = S::max(top, S::mul(s, by));
    }
    const float maximum = S::reduce_max(top);
    F sum = not_finite;
    for (int64_t j = begin; j < n; j += 16) {
      const F p = M::exp(S::sub(S::mul(S::load(scores + j), by), S::set1(maximum)));
      sum = S::add(sum, p);
      S::store(scores + j, p);
    }
    const float total = S::reduce_sum(sum);
    *inverse_sum = 1.0F / total;
    if (lse != nullptr) *lse = maximum + std::log(total);
  }

  // Computes acc[i][v] += p[i][j] * V[j][v] over keys [j0, j1), for D vectors of 16 of the head dim from `d0` on, of
  // which `left` are valid.
  template <int Q, int D, typename T>
  static void add_values(const Rows<T>& rows, const float* p, int64_t stride, int64_t j0, int64_t j1, int64_t d0,
                         int64_t left, F acc[Q][D]) {
    const int64_t width = rows.args.head_dim;
    for (int64_t j = j0; j < j1;) {
      const T* tile = rows.value_tile(j / 16) + d0;
      const int64_t tile_end = (j / 16 + 1) * 16 < j1 ? (j / 16 + 1) * 16 : j1;
      const T* next = tile_end < j1 ? rows.value_tile(tile_end / 16) + d0 : tile;
      for (; j < tile_end; ++j) {
        const T* row = tile + (j % 16) * width;
        for (int c = 0; c < D; c += kLineVectors<T>) S::prefetch(next + (j % 16) * width + c * 16);
        F v[D];
        for (int c = 0; c < D; ++c) v[c] = M::load(row + 16 * c, left - 16 * c);
        for (int i = 0; i < Q; ++i) {
          const F x = S::set1(p[i * stride + j]);
          for (int c = 0; c < D; ++c) acc[i][c] = S::fma(x, v[c], acc[i][c]);
        }
      }
    }
  }

  template <int Q, int D, typename T>
  static void value_vectors(const Rows<T>& rows, int64_t first, const float* p, int64_t stride,
                            const float* inverse_sum, int64_t d0) {
    const int64_t width = rows.args.head_dim;
    F acc[Q][D];
    // Keys that all vectors see are added together, those before and after to one vector at a time.
    int64_t begin = rows.first_key_of(first), end = rows.keys_of(first);
    for (int i = 0; i < Q; ++i) {
      for (int c = 0; c < D; ++c) acc[i][c] = S::zero();
      if (rows.first_key_of(first + i) > begin) begin = rows.first_key_of(first + i);
      if (rows.keys_of(first + i) < end) end = rows.keys_of(first + i);
    }
    if (end < begin) end = begin;
    for (int i = 0; i < Q; ++i) {
      const int64_t n = rows.keys_of(first + i);
      add_values<1, D>(rows, p + i * stride, stride, rows.first_key_of(first + i), begin < n ? begin : n, d0,
                       width - d0, acc + i);
    }
    add_values<Q, D>(rows, p, stride, begin, end, d0, width - d0, acc);
    for (int i = 0; i < Q; ++i) {
      add_values<1, D>(rows, p + i * stride, stride, end, rows.keys_of(first + i), d0, width - d0, acc + i);
      T* out = static_cast<T*>(rows.args.out) + rows.offset_of(first + i) + d0;
      for (int c = 0; c < D; ++c)
        M::store(out + 16 * c, S::mul(acc[i][c], S::set1(inverse_sum[i])), width - d0 - 16 * c);
    }
  }

  template <int Q, typename T>
  static void attend(const Rows<T>& rows, int64_t first, const float* q, float* scores, int64_t stride, float scale) {
    const int64_t width = rows.args.head_dim;
    int64_t most = 0, least = rows.first_key_of(first);
    for (int i = 0; i < Q; ++i) {
      if (rows.keys_of(first + i) > most) most = rows.keys_of(first + i);
      if (rows.first_key_of(first + i) < least) least = rows.first_key_of(first + i);
    }
    score_vectors<Q>(rows, q + first * width, least / 16, (most + 15) / 16, scores, stride);
    float inverse_sum[Q];
    for (int i = 0; i < Q; ++i)
      softmax(scores + i * stride, rows.first_key_of(first + i), rows.keys_of(first + i), scale, inverse_sum + i,
              rows.lse_of(first + i));
    int64_t d = 0;
    for (; d + 64 <= width; d += 64) value_vectors<Q, 4>(rows, first, scores, stride, inverse_sum, d);
    for (; d < width; d += 16) value_vectors<Q, 1>(rows, first, scores, stride, inverse_sum, d);
  }

  template <typename T>
  static void forward_rows(const AttentionArgs& args, int64_t row_begin, int64_t row_end, int64_t kv_head,
                           float* scratch) {
    const Rows<T> rows(args, row_begin, row_end, kv_head);
    const float scale = 1.0F / std::sqrt(static_cast<float>(args.head_dim));
    float* q = scratch;
    float* scores = q + rows.num_vectors * args.head_dim;
    const int64_t stride = (rows.max_keys + 15) / 16 * 16;
    load_vectors(rows, args.q, q);
    int64_t i = 0;
    for (; i + 4 <= rows.num_vectors; i += 4) attend<4>(rows, i, q, scores, stride, scale);
    for (; i + 2 <= rows.num_vectors; i += 2) attend<2>(rows, i, q, scores, stride, scale);
    for (; i < rows.num_vectors; ++i) attend<1>(rows, i, q, scores, stride, scale);
  }
  static void forward(const AttentionArgs& args, int64_t row_begin, int64_t row_end, int64_t kv_head, float* scratch) {
    if (args.elem == Elem::kF32) {
      forward_rows<float>(args, row_begin, row_end, kv_head, scratch);
    } else {
      forward_rows<uint16_t>(args, row_begin, row_end, kv_head, scratch);
    }
  }

  // ---- backward: for each tile, P and dS of all vectors (lanes are keys), then the three products ----

  // A 16-row [16][width] or [width][16] tile as floats, and its transpose. Lanes and rows past `keys` are 0.
  template <typename T>
  static void widen_keys(const T* tile, int64_t width, int64_t keys, float* columns, float* rows) {
    for (int64_t d = 0; d < width; ++d) {
      S::store(columns + d * 16, S::keep_first(S::load(tile + d * 16), keys, S::zero()));
      for (int64_t j = 0; j < 16; ++j) rows[j * width + d] = columns[d * 16 + j];
    }
  }
  template <typename T>
  static void widen_values(const T* tile, int64_t width, int64_t keys, float* columns) {
    float row[16];
    for (int64_t j = 0; j < 16; ++j) {
      for (int64_t d = 0; d < width; d += 16) {
        const int64_t left = width - d;
        M::store(row, j < keys ? M::load(tile + j * width + d, left) : S::zero(), 16);
        for (int64_t c = 0; c < 16 && c < left; ++c) columns[(d + c) * 16 + j] = row[c];
      }
    }
  }

  template <int Q>
  static void dot_columns(const float* x, int64_t width, const float* columns, F acc[Q]) {
    for (int i = 0; i < Q; ++i) acc[i] = S::zero();
    for (int64_t d = 0; d < width; ++d) {
      const F c = S::load(columns + d * 16);
      for (int i = 0; i < Q; ++i) acc[i] = S::fma(S::set1(x[i * width + d]), c, acc[i]);
    }
  }

  // Computes columns[d] += sum_i x_i[d] * y_i over `n` vectors, in order.
  static void outer_add(const float* x, const float* y, int64_t n, int64_t width, float* columns) {
    for (int64_t d = 0; d < width; ++d) {
      F sum = S::load(columns + d * 16);
      for (int64_t i = 0; i < n; ++i) sum = S::fma(S::set1(x[i * width + d]), S::load(y + i * 16), sum);
      S::store(columns + d * 16, sum);
    }
  }

  // Computes dq_i += sum_j ds_i[j] * key row j.
  static void add_rows(const float* ds, int64_t keys, const float* key_rows, int64_t width, float* dq) {
    for (int64_t d = 0; d < width; d += 16) {
      const int64_t left = width - d;
      F sum = M::load(dq + d, left);
      for (int64_t j = 0; j < keys; ++j) sum = S::fma(S::set1(ds[j]), M::load(key_rows + j * width + d, left), sum);
      M::store(dq + d, sum, left);
    }
  }

  // Computes P and dS of Q vectors for one tile.
  template <int Q, typename T>
  static void tile_gradient(const Rows<T>& rows, int64_t first, int64_t tile, const float* q, const float* dout,
                            const float* delta, const float* key_columns, const float* value_columns, float scale,
                            float* p_out, float* ds_out) {
    const int64_t width = rows.args.head_dim;
    F score[Q], dp[Q];
    dot_columns<Q>(q + first * width, width, key_columns, score);
    dot_columns<Q>(dout + first * width, width, value_columns, dp);
    for (int i = 0; i < Q; ++i) {
      const int64_t v = first + i;
      const int64_t left = rows.keys_of(v) - tile * 16;
      F p = M::exp(S::sub(S::mul(score[i], S::set1(scale)), S::set1(*rows.lse_of(v))));
      if (left < 16) p = S::keep_first(p, left > 0 ? left : 0, S::zero());
      const int64_t unseen = rows.first_key_of(v) - tile * 16;  // keys of the tile before the window
      if (unseen > 0) p = S::keep_first(S::zero(), unseen < 16 ? unseen : 16, p);
      S::store(p_out + v * 16, p);
      S::store(ds_out + v * 16, S::mul(S::mul(p, S::sub(dp[i], S::set1(delta[v]))), S::set1(scale)));
    }
  }

  template <typename T>
  static void backward_rows(const AttentionBackwardArgs& b, int64_t row_begin, int64_t row_end, int64_t kv_head,
                            float* scratch) {
    const AttentionArgs& args = b.forward;
    const Rows<T> rows(args, row_begin, row_end, kv_head);
    const int64_t width = args.head_dim, n = rows.num_vectors;
    const float scale = 1.0F / std::sqrt(static_cast<float>(width));
    float* q = scratch;
    float* dout = q + n * width;
    float* dq = dout + n * width;
    float* p = dq + n * width;
    float* ds = p + n * 16;
    float* delta = ds + n * 16;
    float* key_columns = delta + n * 16;
    float* key_rows = key_columns + width * 16;
    float* value_columns = key_rows + width * 16;
    load_vectors(rows, args.q, q);
    load_vectors(rows, b.dout, dout);
    load_vectors(rows, args.out, dq);
    for (int64_t i = 0; i < n; ++i) delta[i] = M::dot(dout + i * width, dq + i * width, width);
    for (int64_t i = 0; i < n * width; ++i) dq[i] = 0.0F;

    for (int64_t tile = rows.min_first_key / 16; tile * 16 < rows.max_keys; ++tile) {
      const int64_t keys = rows.max_keys - tile * 16 < 16 ? rows.max_keys - tile * 16 : 16;
      widen_keys(rows.key_tile(tile), width, keys, key_columns, key_rows);
      widen_values(rows.value_tile(tile), width, keys, value_columns);
      int64_t i = 0;
      for (; i + 4 <= n; i += 4)
        tile_gradient<4>(rows, i, tile, q, dout, delta, key_columns, value_columns, scale, p, ds);
      for (; i < n; ++i) tile_gradient<1>(rows, i, tile, q, dout, delta, key_columns, value_columns, scale, p, ds);
      float* dk = b.dkv + rows.blocks[tile] * b.dkv_block_stride + kv_head * width * 16;
      float* dv = dk + args.num_kv_heads * width * 16;
      outer_add(q, ds, n, width, dk);
      outer_add(dout, p, n, width, dv);
      for (int64_t v = 0; v < n; ++v) add_rows(ds + v * 16, keys, key_rows, width, dq + v * width);
    }
    for (int64_t i = 0; i < n; ++i) {
      T* out = static_cast<T*>(b.dq) + rows.offset_of(i);
      for (int64_t d = 0; d < width; d += 16) M::store(out + d, M::load(dq + i * width + d, width - d), width - d);
    }
  }
  static void backward(const AttentionBackwardArgs& b, int64_t row_begin, int64_t row_end, int64_t kv_head,
                       float* scratch) {
    if (b.forward.elem == Elem::kF32) {
      backward_rows<float>(b, row_begin, row_end, kv_head, scratch);
    } else {
      backward_rows<uint16_t>(b, row_begin, row_end, kv_head, scratch);
    }
  }
};

}  // namespace tandem::device::cpu
