#include "device/ops_plan.h"

#include <algorithm>

#include "device/block.h"

namespace tandem::device {
namespace {

constexpr int64_t kFloatBytes = 4;

// device/cpu/gemm.cc: so many floats of packed rows at a time, but whole groups of 16 of the largest micro kernel's
// rows (32, AMX's).
constexpr int64_t kPackedFloats = int64_t{4} << 20;
constexpr int64_t kLeastPackedRows = 16 * 32;
// Panels and results of a thread.
constexpr int64_t kThreadBytes = int64_t{1} << 20;

constexpr AtenCallShape kCall;
constexpr int64_t kTileRows = kAttentionTileRows, kTileKeys = kAttentionTileKeys;
constexpr int64_t kIndexBytes = 8;

int64_t rounded_up(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

// To within what rounds a width up to 32 entries.
int64_t packed_bytes(int64_t rows, int64_t inner) {
  const int64_t width = (inner + 31) / 32 * 32;
  return std::min(rows * width, std::max(kPackedFloats, kLeastPackedRows * width)) * kFloatBytes;
}

// cpu::attention_scratch_floats of the largest tile, 16 rows (AMX).
int64_t attention_scratch_bytes(const OpsShape& s, int64_t context) {
  const int64_t vectors = 16 * (s.num_heads / s.num_kv_heads), width = (s.head_dim + 31) / 32 * 32;
  return (vectors * (3 * width + 48 + (context + 31) / 32 * 32) + 144 * width + 16) * kFloatBytes;
}

}  // namespace

OpsFamily ops_family(const std::string& device) {
  return device == "cpu" || device.empty() ? OpsFamily::kCpu : OpsFamily::kAten;
}

OpsPlan::OpsPlan(OpsFamily family, const OpsShape& shape, int64_t element_bytes)
    : family_(family), shape_(shape), element_(element_bytes), cast_(element_bytes == kFloatBytes ? 0 : kFloatBytes) {}

OpBytes OpsPlan::op(int64_t result, int64_t aten_most) const {
  return {.result = result, .most = family_ == OpsFamily::kCpu ? result : std::max(result, aten_most)};
}

// The last rows, fewer than a call's, go through copies of that many.
OpBytes OpsPlan::linear(int64_t rows, int64_t inner, int64_t outer, int64_t out_bytes) const {
  const int64_t result = rows * outer * out_bytes;
  return op(result, result + kCall.linear_rows * (inner * element_ + outer * out_bytes));
}

OpBytes OpsPlan::linear_grad_input(int64_t rows, int64_t inner, int64_t outer, bool is_float32) const {
  const int64_t result = rows * inner * element_;
  return op(result, result + (is_float32 && cast_ > 0 ? (outer * inner + rows * inner) * kFloatBytes : 0));
}

OpBytes OpsPlan::add(int64_t rows) const {
  const int64_t result = rows * shape_.hidden * element_;
  return op(result, result);
}

OpBytes OpsPlan::rms_norm(int64_t rows) const {
  const int64_t count = rows * shape_.hidden;
  // float32 of x, then unit, then the result.
  return op(count * element_, count * (cast_ + kFloatBytes + (cast_ > 0 ? element_ : 0)) + 3 * rows * kFloatBytes);
}

OpBytes OpsPlan::rms_norm_backward(int64_t rows) const {
  const int64_t count = rows * shape_.hidden;
  // float32 of dy and x, unit, dunit, and their product.
  return op(count * element_, count * (2 * cast_ + 3 * kFloatBytes) + 3 * rows * kFloatBytes);
}

OpBytes OpsPlan::qk_norm_rope(int64_t rows) const {
  const int64_t result = rows * (shape_.q_width + 2 * shape_.kv_width) * element_;
  // cos and sin, and sin with its sign; a norm's inverse.
  const int64_t rotation = 3 * rows * shape_.head_dim * kFloatBytes / 2, norms = rows * shape_.num_heads * kFloatBytes;
  // float32 of x, unit, its turned copy and the halves of that.
  const int64_t of_q = rows * shape_.q_width * (cast_ + 3 * kFloatBytes);
  const int64_t of_k = rows * (shape_.q_width * element_ + shape_.kv_width * (cast_ + 3 * kFloatBytes));
  return op(result, std::max({result, of_q, of_k}) + rotation + norms);
}

OpBytes OpsPlan::qk_norm_rope_backward(int64_t rows) const {
  const int64_t result = rows * (shape_.q_width + 2 * shape_.kv_width) * element_;
  const int64_t rotation = rows * shape_.head_dim * kFloatBytes, norms = 2 * rows * shape_.num_heads * kFloatBytes;
  // float32 of dq and q, dq turned back, and what a norm's backward has: unit, dunit, their product.
  return op(result, result + rows * shape_.q_width * (2 * cast_ + 4 * kFloatBytes) + rotation + norms);
}

OpBytes OpsPlan::silu_mul(int64_t rows) const {
  const int64_t count = rows * shape_.mlp;
  // float32 of gate and up, silu, the result.
  return op(count * element_, count * (2 * cast_ + kFloatBytes + (cast_ > 0 ? element_ : 0)));
}

OpBytes OpsPlan::silu_mul_backward(int64_t rows) const {
  const int64_t count = rows * shape_.mlp, result = 2 * count * element_;
  // float32 of gate, up and dy, sigmoid, and a product.
  return op(result, result + count * (3 * cast_ + 2 * kFloatBytes));
}

OpBytes OpsPlan::kv_append(int64_t entries) const {
  return op(0, entries * (shape_.kv_width * element_ + 2 * kIndexBytes));
}

OpBytes OpsPlan::kv_append_backward(int64_t rows, int64_t entries) const {
  const int64_t half = rows * shape_.kv_width;
  if (family_ == OpsFamily::kCpu) {  // sums both in float32; only bfloat16 then needs copies
    return {.result = 2 * half * element_, .most = 2 * half * (kFloatBytes + (cast_ > 0 ? element_ : 0))};
  }
  // One result; float32 sums of the other, what is added to them, and what sorts its indices.
  return op(2 * half * element_,
            half * (element_ + kFloatBytes) + entries * (shape_.kv_width * kFloatBytes + 8 * kIndexBytes));
}

OpBytes OpsPlan::paged_attention(const AttentionLoad& load) const {
  const int64_t places = rounded_up(load.tiles, kCall.attention_tiles) * kTileRows;
  const int64_t queries = places * shape_.q_width, call_rows = kCall.attention_tiles * kTileRows;
  const int64_t keys = kCall.attention_tiles * kTileKeys * shape_.kv_width;  // of a call
  const int64_t result = load.rows * shape_.q_width * element_;
  const int64_t sums = 2 * places * shape_.num_heads * kFloatBytes;
  // The rows with one of zeros, those of the tiles, both ways around.
  const int64_t gather = (load.rows + 2) * shape_.q_width * element_ + queries * (element_ + cast_ + kFloatBytes);
  // Queries and results; keys; values before and after they are turned, or scores and what they add to the results.
  const int64_t scores = call_rows * (kTileKeys * shape_.num_heads + shape_.q_width) * kFloatBytes;
  const int64_t call = 2 * queries * kFloatBytes + sums + keys * 2 * kFloatBytes +
                       std::max(keys * kFloatBytes, scores) +
                       call_rows * (kTileKeys + 4 * shape_.num_heads * kFloatBytes);
  // Queries, results, results by place, and by row.
  const int64_t collect = 3 * queries * kFloatBytes + sums + load.rows * shape_.q_width * kFloatBytes + 2 * sums;
  return op(result, std::max({gather, call, collect}));
}

OpBytes OpsPlan::paged_attention_backward(const AttentionLoad& load) const {
  const int64_t result = load.rows * shape_.q_width * element_;
  const int64_t rows = load.longest_rows * shape_.q_width, keys = load.longest_keys * shape_.kv_width;
  const int64_t scores = load.longest_rows * load.longest_keys * shape_.num_heads;
  // Queries, their gradients, keys and values in float32; probabilities and their gradients; a product.
  const int64_t products = std::max(rows * (2 * kFloatBytes + (cast_ > 0 ? element_ : 0)), keys * kFloatBytes);
  const int64_t heads = 3 * load.longest_rows * shape_.num_heads * kFloatBytes;
  const int64_t begin = (2 * rows + 3 * keys) * kFloatBytes + std::max(rows, keys) * kFloatBytes;
  return op(result, result + std::max(begin, (2 * (rows + keys) + 2 * scores) * kFloatBytes + products) + heads);
}

OpBytes OpsPlan::logprob(int64_t rows) const {
  return op(0, 2 * rows * shape_.vocab * kFloatBytes + 8 * rows * kIndexBytes);
}

OpBytes OpsPlan::logprob_backward(int64_t rows, bool has_entropy_gradient) const {
  return op(0, (has_entropy_gradient ? 2 : 1) * rows * shape_.vocab * kFloatBytes + 8 * rows * kIndexBytes);
}

OpBytes OpsPlan::embedding_backward(int64_t rows, int64_t gradient_bytes) const {
  return op(0, rows * (gradient_bytes == kFloatBytes ? 0 : shape_.hidden * kFloatBytes) + 8 * rows * kIndexBytes);
}

OpBytes OpsPlan::adamw(int64_t elements) const { return op(0, elements * kFloatBytes); }

OpBytes OpsPlan::sum_of_squares(int64_t elements) const {
  return op(0, std::min(elements, kCall.sum_elements) * 2 * int64_t{sizeof(double)});
}

int64_t OpsPlan::prepared(const AttentionLoad& load, bool has_backward) const {
  if (family_ == OpsFamily::kCpu) return 0;
  const int64_t tiles = rounded_up(load.tiles, kCall.attention_tiles);
  const int64_t tile_blocks = rounded_up(load.longest_keys, kTileKeys) / kTileKeys * (kTileKeys / kBlockTokens);
  const int64_t indices = tiles * (2 * kTileRows + 1 + tile_blocks) + load.rows;
  // Which keys lie after each row, and the sequences' own indices.
  const int64_t hidden =
      load.rows * (load.longest_keys + kIndexBytes) + load.sequences * load.longest_keys / kBlockTokens * kIndexBytes;
  return indices * kIndexBytes + (has_backward ? hidden : 0);
}

int64_t cpu_kernel_bytes(const OpsShape& s, const CpuLoad& load, int64_t num_threads) {
  const int64_t qkv = s.q_width + 2 * s.kv_width;
  // Forward: rows of the batch, over each width that a matrix reads.
  int64_t packed = 0;
  for (const int64_t inner : {s.hidden, s.q_width, s.mlp}) packed = std::max(packed, packed_bytes(load.rows, inner));
  packed = std::max(packed, packed_bytes(load.logits_rows, s.hidden));
  if (load.trains) {
    // Gradients of inputs read the widths that matrices write, those of weights all rows of the batch.
    for (const int64_t inner : {qkv, s.hidden, 2 * s.mlp}) packed = std::max(packed, packed_bytes(load.rows, inner));
    packed = std::max(packed, packed_bytes(load.logits_rows, s.vocab));
    for (const int64_t rows : {qkv, s.hidden, 2 * s.mlp}) packed = std::max(packed, packed_bytes(rows, load.rows));
    packed = std::max(packed, packed_bytes(s.vocab, load.logits_rows));
  }
  const int64_t rotations = load.context * s.head_dim * kFloatBytes;
  return packed + num_threads * (kThreadBytes + attention_scratch_bytes(s, load.context)) + rotations;
}

}  // namespace tandem::device
