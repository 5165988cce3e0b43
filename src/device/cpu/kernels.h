// Declares the CPU kernels as a table of plain functions over pointers, one table per instruction set. No torch here,
// so the files that are compiled with AVX flags hold nothing else. cpu_ops.cc chooses a table and brings tensors and
// threads.
//
// Elements are float (kF32) or bfloat16 bits (kBF16). Arithmetic is float32. Every function computes a row from that
// row alone, in an order that does not depend on how many rows there are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/quantisation.h"

namespace tandem::device::cpu {

enum class Elem : uint8_t { kF32, kBF16 };

// Computes C[M,N] (+)= A B^T or the like. The sum over k runs k = 0, 1, 2, ... one after the other for every element of
// C (AMX: over pieces of 32 from 0 on), so neither M nor any blocking changes the bits. A Matrix says how A or B lies
// in memory.
struct Matrix {
  const void* data;
  Elem elem;
  int64_t stride;  // elements between rows
  bool k_major;    // false: rows are m (or n), and k runs along a row; true: rows are k
  // Row i is the row index[i] of `data`, which saves a copy of rows that lie elsewhere; null: row i. The weights of
  // few_rows() have none.
  const int32_t* index = nullptr;
};

// A quantised matrix [n][k] in host memory, or rows of one that begin and end with parts.
struct QuantisedRows {
  const std::byte* data;  // of the whole matrix
  const QuantisedPart* parts;
  int64_t num_parts;
  int64_t first_row = 0;  // row 0 of these is this row of the whole matrix
};

// The destination of one block of packed rows: rows [m0, m0 + rows) of A.
struct PackedBlock {
  int64_t m0, rows;
  void* out;  // kc entries of the block's rows, rounded up to row_unit: as many floats, and 16 spare
};

// Names the matrix kernels of one instruction set for one kind of operands. Only these functions know the layout of
// packed operands:
//   floats   A in blocks [k][rows], B in panels [k][panel], as float32
//   pairs    the same with 32-bit words of k, k + 1 for one instruction that multiplies two bf16; half as many
//   tiles    (AMX) A in tiles of 16 rows x 32 k, B as pairs
struct GemmKernels {
  int64_t micro_rows;     // most rows of a block
  int64_t row_unit;       // multiple to which packing rounds rows up
  int64_t panel;          // columns of a panel: 32, or 16 where registers are few
  int64_t chunk;          // entries of k that are packed together
  int64_t max_few_rows;   // rows up to which weights are used as they come from memory, unpacked
  int64_t few_rows_step;  // most rows of one few_rows call
  int64_t task_blocks;    // blocks that stay in the second-level cache while panels pass
  void (*prepare)();      // called on a thread before the others are; may be null
  // Packs several blocks at once, so that a k-major A is read along its rows.
  void (*pack_a)(const Matrix& a, const PackedBlock* blocks, int64_t num_blocks, int64_t m_end, int64_t k0, int64_t kc);
  // Packs `num_panels` neighbouring panels, panel_floats apart. Columns past n_end repeat the last one or are 0; nobody
  // reads their results. The entries of an [n][k] matrix that lie `next` elements further will be packed next, so they
  // are requested from memory; 0: none are.
  void (*pack_b)(const Matrix& b, int64_t n0, int64_t num_panels, int64_t n_end, int64_t k0, int64_t kc, int64_t next,
                 float* out, int64_t panel_floats);
  // Adds to c[rows][panel], whose rows are ldc floats apart: to its contents, or to 0.
  void (*micro)(int64_t rows, int64_t kc, const void* a, const void* b, float* c, int64_t ldc, bool from_zero);
  // Computes the same sums straight from [n][k] rows of B, with K a multiple of 32. pack_few_rows packs rows [m0, m0 +
  // rows) of A into k * few_rows_step floats and 16 spare. few_rows gives c[rows][32] for columns n0... `first` means
  // that these columns of B come from memory and are worth an early request; later calls find them in the cache.
  void (*pack_few_rows)(const Matrix& a, int64_t m0, int64_t rows, int64_t k, void* out);
  void (*few_rows)(int64_t rows, int64_t k, const void* a, const Matrix& b, int64_t n0, int64_t n_end, bool first,
                   float* c);
  // Computes y[0..n) (+)= c.
  void (*store)(const float* c, int64_t n, void* y, Elem elem, bool accumulate);
};

struct NormArgs {
  int64_t width;
  double eps;
  Elem elem;
  double offset = 0.0;  // Norm::offset
};

// These are the arguments for query rows against their keys; attention_inl.h has the kernel.
struct AttentionArgs {
  const void* q;                   // [T, H, K]
  const void* kv;                  // [B, 2, G, K * 16]
  void* out;                       // [T, H, K]
  float* lse;                      // [T, H] or null
  const int32_t* sequence_of_row;  // [T]
  const int32_t* row_position;     // [T]
  const int32_t* block_table;      // [S, max_blocks]
  int64_t max_blocks;
  int64_t block_stride;  // elements between blocks of kv
  int64_t num_heads, num_kv_heads, head_dim;
  Elem elem;
  int64_t window = 0;  // how many keys a row sees at most; 0: all up to its position
};

struct AttentionBackwardArgs {
  AttentionArgs forward;
  const void* dout;  // [T, H, K]
  void* dq;          // [T, H, K]
  float* dkv;        // [B, 2, G, K * 16], K part [K][16], V part [16][K]; accumulated
  int64_t dkv_block_stride;
};

struct RopeArgs {
  int64_t num_heads, num_kv_heads, head_dim;
  double eps;
  Elem elem;
  double offset = 0.0;  // Norm::offset of the norms
};

// device/experts.h says what experts, places and their weights are.
struct RouteArgs {
  int64_t experts, chosen;
  bool normalises;
};

struct ExpertSumArgs {
  int64_t width, chosen;
  Elem y_elem, sum_elem;  // sum_elem: of residual and sum
};

struct AdamwArgs {
  float lr_scaled;                                       // lr / (1 - beta1^step)
  float decay;                                           // weight decay * (1 - beta1^step): lr_scaled times it is lr wd
  float beta1, one_minus_beta1, beta2, one_minus_beta2;  // the complements rounded from double
  float eps;
  float inverse_sqrt_correction2;  // 1 / sqrt(1 - beta2^step)
  float grad_scale;
};

struct KernelTable {
  const char* name;
  GemmKernels gemm;
  GemmKernels gemm_bf16;  // kernels for two bf16 operands

  // Writes rows and columns of a part of a quantised matrix as bf16 [num_rows][num_columns]; `row` counts in the part.
  void (*dequantise)(const QuantisedBytes& bytes, int64_t row, int64_t num_rows, int64_t column, int64_t num_columns,
                     uint16_t* out);

  void (*add)(const void* a, const void* b, void* y, int64_t n, Elem elem);
  void (*rms_norm)(const void* x, const void* w, void* y, int64_t rows, const NormArgs& args);
  // Writes dx, and adds the sum over these rows to dw[width], unless it is null.
  void (*rms_norm_backward)(const void* dy, const void* x, const void* w, void* dx, float* dw, int64_t rows,
                            const NormArgs& args);
  // cos_sin is [rows][K]: cosines of the K/2 angles, then sines.
  void (*qk_norm_rope)(const void* qkv, const void* q_norm, const void* k_norm, const float* const* cos_sin, void* q,
                       void* k, void* v, int64_t rows, const RopeArgs& args);
  void (*qk_norm_rope_backward)(const void* dq, const void* dk, const void* dv, const void* qkv, const void* q_norm,
                                const void* k_norm, const float* const* cos_sin, void* dqkv, float* dq_norm,
                                float* dk_norm, int64_t rows, const RopeArgs& args);
  // The two below do the same without the norms. The backward reads nothing of the forward.
  void (*rope)(const void* qkv, const float* const* cos_sin, void* q, void* k, void* v, int64_t rows,
               const RopeArgs& args);
  void (*rope_backward)(const void* dq, const void* dk, const void* dv, const float* const* cos_sin, void* dqkv,
                        int64_t rows, const RopeArgs& args);
  void (*silu_mul)(const void* gate_up, void* y, int64_t rows, int64_t width, Elem elem);
  void (*silu_mul_backward)(void* dy, const void* gate_up, void* dgate_up, int64_t rows, int64_t width, Elem elem);

  void (*gelu_mul)(const void* gate_up, void* y, int64_t rows, int64_t width, Elem elem);
  void (*gelu_mul_backward)(void* dy, const void* gate_up, void* dgate_up, int64_t rows, int64_t width, Elem elem);

  // Writes ids and weights [rows, chosen] of logits [rows, experts].
  void (*route)(const float* logits, int32_t* ids, float* weights, int64_t rows, const RouteArgs& args);
  void (*route_backward)(const float* dweights, const float* logits, const int32_t* ids, const float* weights,
                         void* dlogits, int64_t rows, const RouteArgs& args, Elem elem);
  // Row r of the sum [rows, width] is that of y's rows places[r, chosen], times their weights unless that is null, in
  // this order; then plus the residual unless that is null.
  void (*sum_of_experts)(const void* y, const float* weights, const int32_t* places, const void* residual, void* sum,
                         int64_t rows, const ExpertSumArgs& args);
  // The rows are places, each with its weight: Ops::weighted_silu_backward().
  void (*weighted_silu_backward)(const void* da, const void* gate_up, const float* weights, void* dgate_up,
                                 void* weighted, float* dweights, int64_t rows, int64_t width, Elem elem);

  // Writes one token's k and v [G, K] into slot `offset` of the block at `block`.
  void (*kv_write)(const void* k, const void* v, void* block, int64_t offset, int64_t num_kv_heads, int64_t head_dim,
                   Elem elem);
  // Computes rows [row_begin, row_end) of one sequence, at most attention_rows of them, for one kv head. The scratch
  // has attention_scratch_floats().
  int64_t attention_rows;
  void (*attention)(const AttentionArgs& args, int64_t row_begin, int64_t row_end, int64_t kv_head, float* scratch);
  void (*attention_backward)(const AttentionBackwardArgs& args, int64_t row_begin, int64_t row_end, int64_t kv_head,
                             float* scratch);

  // Computes log-prob of target, entropy and logsumexp of one row of logits [V] float32, all at logits *
  // inverse_temperature.
  void (*logprob)(const float* logits, int64_t vocab, int64_t target, float inverse_temperature, float* logp,
                  float* entropy, float* lse);
  void (*logprob_backward)(float* logits, int64_t vocab, int64_t target, float inverse_temperature, float dlogp,
                           float dentropy, float entropy, float lse);

  void (*adamw)(void* weight, Elem elem, float* master, const float* grad, float* m, float* v, int64_t n,
                const AdamwArgs& args);
};

// Returns the floats of scratch for an attention call of so many rows that see at most `max_keys` keys.
constexpr int64_t attention_scratch_floats(int64_t rows, int64_t max_keys, int64_t heads_per_kv_head,
                                           int64_t head_dim) {
  const auto round_up = [](int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; };
  const int64_t vectors = round_up(rows * heads_per_kv_head, 16), width = round_up(head_dim, 32);
  return vectors * (3 * width + 48 + round_up(max_keys, 32)) + 144 * width + 16;
}

const KernelTable* kernels_scalar();
// On x86-64 alone:
const KernelTable* kernels_avx2();
const KernelTable* kernels_avx512();
const KernelTable* kernels_avx512bf16();
const KernelTable* kernels_amx();
// On aarch64 alone:
const KernelTable* kernels_neon();

}  // namespace tandem::device::cpu
