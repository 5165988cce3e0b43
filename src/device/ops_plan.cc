#include "device/ops_plan.h"

#include <algorithm>

#include "device/block.h"
#include "device/cuda/scratch.h"

namespace tandem::device {
namespace {

constexpr int64_t kFloatBytes = 4;

// device/cpu/gemm.cc packs so many floats of rows at a time, but whole groups of 16 of the largest micro kernel's rows
// (32, AMX's).
constexpr int64_t kPackedFloats = int64_t{4} << 20;
constexpr int64_t kLeastPackedRows = 16 * 32;
// These are a thread's panels and results.
constexpr int64_t kThreadBytes = int64_t{1} << 20;

constexpr AtenCallShape kCall;
constexpr int64_t kTileRows = kAttentionTileRows, kTileKeys = kAttentionTileKeys;
constexpr int64_t kIndexBytes = 8;

// The partial sums of a weight's gradient are float32.
Size partial_sums(Size rows, Size width) { return cuda::num_partials(rows) * width * kFloatBytes; }

Size rounded_up(Size count, Size step) { return (count + step - 1) / step * step; }

// This is exact except that a width is rounded up to a multiple of 32 entries.
Size packed_bytes(Size rows, Size inner) {
  const Size width = (inner + 31) / 32 * 32;
  return std::min(rows * width, std::max(Size(kPackedFloats), kLeastPackedRows * width)) * kFloatBytes;
}

// This is cpu::attention_scratch_floats of the largest tile, 16 rows (AMX).
Size attention_scratch_bytes(const OpsShape& s, Size context) {
  const Size vectors = 16 * (s.num_heads / s.num_kv_heads), width = (s.head_dim + 31) / 32 * 32;
  return (vectors * (3 * width + 48 + (context + 31) / 32 * 32) + 144 * width + 16) * kFloatBytes;
}

}  // namespace

OpsFamily ops_family(const std::string& device) {
  return device == "cpu" || device.empty() ? OpsFamily::kCpu : OpsFamily::kCuda;
}

// CUDA's kernels compute in bfloat16.
OpsPlan::OpsPlan(OpsFamily family, const OpsShape& shape, Size element_bytes)
    : family_(family == OpsFamily::kCuda && element_bytes == kFloatBytes ? OpsFamily::kAten : family),
      shape_(shape),
      element_(element_bytes),
      cast_(element_bytes == kFloatBytes ? 0 : kFloatBytes) {}

OpBytes OpsPlan::op(Size result, Size aten_most, Size scratch) const {
  switch (family_) {
    case OpsFamily::kAten: return {.result = result, .most = std::max(result, aten_most)};
    case OpsFamily::kCuda: return {.result = result, .most = result + scratch};
    default: return {.result = result, .most = result};
  }
}

// The last rows, fewer than a call's, are copied to padded tensors of a call's rows.
OpBytes OpsPlan::linear(Size rows, Size inner, Size outer, Size out_bytes) const {
  const Size result = rows * outer * out_bytes;
  return op(result, result + kCall.linear_rows * (inner * element_ + outer * out_bytes));
}

// In ATen the product is followed by the sum; CUDA's products add by themselves.
OpBytes OpsPlan::linear_add(Size rows, Size inner) const {
  if (has_kernels()) return add(rows);
  const OpBytes product = linear(rows, inner, shape_.hidden, element_), sum = add(rows);
  return {.result = sum.result, .most = std::max(product.most, product.result + sum.most)};
}

OpBytes OpsPlan::linear_add_to(Size rows, Size inner, Size outer) const {
  return {.result = 0, .most = linear(rows, inner, outer, element_).most};
}

OpBytes OpsPlan::linear_grad_input(Size rows, Size inner, Size outer, Size out_bytes, bool is_float32) const {
  const Size result = rows * inner * out_bytes;
  if (!is_float32 || cast_ == 0) return op(result, result);
  // The temporaries are the weights in float32, and the product unless it is the result.
  const Size product = out_bytes == kFloatBytes ? Size(0) : rows * inner * kFloatBytes;
  return op(result, result + outer * inner * kFloatBytes + product);
}

// The temporary is the sum before it is rounded.
OpBytes OpsPlan::sum_parts(Size elements) const { return op(0, elements * kFloatBytes); }

OpBytes OpsPlan::add(Size rows) const {
  const Size result = rows * shape_.hidden * element_;
  return op(result, result);
}

OpBytes OpsPlan::rms_norm(Size rows) const {
  const Size count = rows * shape_.hidden;
  // The temporaries are x in float32, then unit, then the result.
  return op(count * element_,
            count * (cast_ + kFloatBytes + (cast_ > 0 ? element_ : Size(0))) + 3 * rows * kFloatBytes);
}

OpBytes OpsPlan::rms_norm_backward(Size rows) const {
  const Size count = rows * shape_.hidden;
  // The temporaries are dy and x in float32, unit, dunit, and their product.
  return op(count * element_, count * (2 * cast_ + 3 * kFloatBytes) + 3 * rows * kFloatBytes,
            partial_sums(rows, shape_.hidden));
}

OpBytes OpsPlan::qk_norm_rope(Size rows) const {
  const Size result = rows * (shape_.q_width + 2 * shape_.kv_width) * element_;
  // The rotation takes cos and sin, and sin with its sign; a norm takes its inverse.
  const Size rotation = 3 * rows * shape_.head_dim * kFloatBytes / 2, norms = rows * shape_.num_heads * kFloatBytes;
  // The temporaries are x in float32, unit, its rotated copy, and the halves of that.
  const Size of_q = rows * shape_.q_width * (cast_ + 3 * kFloatBytes);
  const Size of_k = rows * (shape_.q_width * element_ + shape_.kv_width * (cast_ + 3 * kFloatBytes));
  return op(result, std::max({result, of_q, of_k}) + rotation + norms);
}

OpBytes OpsPlan::qk_norm_rope_backward(Size rows) const {
  const Size result = rows * (shape_.q_width + 2 * shape_.kv_width) * element_;
  const Size rotation = rows * shape_.head_dim * kFloatBytes, norms = 2 * rows * shape_.num_heads * kFloatBytes;
  // The temporaries are dq and q in float32, dq rotated back, and those of a norm's backward: unit, dunit, their
  // product.
  return op(result, result + rows * shape_.q_width * (2 * cast_ + 4 * kFloatBytes) + rotation + norms,
            partial_sums(rows, 2 * shape_.head_dim));
}

OpBytes OpsPlan::rope(Size rows) const {
  const Size result = rows * (shape_.q_width + 2 * shape_.kv_width) * element_;
  const Size rotation = 3 * rows * shape_.head_dim * kFloatBytes / 2;  // cos and sin, and sin with its sign
  // The temporaries are x in float32, its rotated copy, and the halves of that.
  const Size of_q = rows * shape_.q_width * (cast_ + 2 * kFloatBytes);
  const Size of_k = rows * (shape_.q_width * element_ + shape_.kv_width * (cast_ + 2 * kFloatBytes));
  return op(result, std::max({result, of_q, of_k}) + rotation);
}

OpBytes OpsPlan::rope_backward(Size rows) const {
  const Size result = rows * (shape_.q_width + 2 * shape_.kv_width) * element_;
  const Size rotation = 3 * rows * shape_.head_dim * kFloatBytes / 2;
  // The temporaries are dq in float32, its rotated copy, and the halves of that.
  return op(result, result + rows * shape_.q_width * (cast_ + 2 * kFloatBytes) + rotation);
}

// The temporary is the gradient in float32.
OpBytes OpsPlan::add_bias_backward(Size rows, Size width) const {
  return op(0, rows * width * cast_, partial_sums(rows, width));
}

OpBytes OpsPlan::silu_mul(Size rows) const {
  const Size count = rows * shape_.mlp;
  // The temporaries are gate and up in float32, silu, and the result.
  return op(count * element_, count * (2 * cast_ + kFloatBytes + (cast_ > 0 ? element_ : Size(0))));
}

OpBytes OpsPlan::silu_mul_backward(Size rows) const {
  const Size count = rows * shape_.mlp, result = 2 * count * element_;
  // The temporaries are gate, up and dy in float32, sigmoid, and a product.
  return op(result, result + count * (3 * cast_ + 2 * kFloatBytes));
}

OpBytes OpsPlan::kv_append(Size entries) const {
  return op(0, entries * (shape_.kv_width * element_ + 2 * kIndexBytes + 2 * sizeof(int32_t)));
}

OpBytes OpsPlan::paged_attention(const AttentionLoad& load) const {
  if (has_attention_kernel()) return op(load.rows * shape_.q_width * element_, 0);
  const Size places = rounded_up(load.tiles, kCall.attention_tiles) * kTileRows;
  const Size queries = places * shape_.q_width, call_rows = kCall.attention_tiles * kTileRows;
  const Size keys = kCall.attention_tiles * kTileKeys * shape_.kv_width;  // elements of the keys of one call
  const Size result = load.rows * shape_.q_width * element_;
  const Size sums = 2 * places * shape_.num_heads * kFloatBytes;
  // The gather takes the rows with one of zeros, and those of the tiles in both layouts.
  const Size gather = (load.rows + 2) * shape_.q_width * element_ + queries * (element_ + cast_ + kFloatBytes);
  // A call takes queries and results; keys; and values before and after they are transposed, or scores and the terms
  // that they add to the results.
  const Size scores = call_rows * (kTileKeys * shape_.num_heads + shape_.q_width) * kFloatBytes;
  const Size call = 2 * queries * kFloatBytes + sums + keys * 2 * kFloatBytes + std::max(keys * kFloatBytes, scores) +
                    call_rows * (kTileKeys + 4 * shape_.num_heads * kFloatBytes);
  // Collecting takes queries, results, results by place, and results by row.
  const Size collect = 3 * queries * kFloatBytes + sums + load.rows * shape_.q_width * kFloatBytes + 2 * sums;
  return op(result, std::max({gather, call, collect}));
}

OpBytes OpsPlan::query_gradient(const AttentionLoad& load) const {
  const Size result = load.rows * shape_.q_width * element_;
  const Size rows = load.longest_rows * shape_.q_width, keys = load.longest_keys * shape_.kv_width;
  const Size scores = load.longest_rows * load.longest_keys * shape_.num_heads;
  // These are queries, their gradients, keys and values in float32; probabilities and their gradients; and a product.
  const Size products = std::max(rows * (2 * kFloatBytes + (cast_ > 0 ? element_ : Size(0))), keys * kFloatBytes);
  const Size heads = 3 * load.longest_rows * shape_.num_heads * kFloatBytes;
  const Size begin = (2 * rows + 3 * keys) * kFloatBytes + std::max(rows, keys) * kFloatBytes;
  return op(result, result + std::max(begin, (2 * (rows + keys) + 2 * scores) * kFloatBytes + products) + heads);
}

OpBytes OpsPlan::kv_gradient(const AttentionLoad& load) const {
  const Size half = load.rows * shape_.kv_width, entries = load.kv_blocks * kBlockTokens;
  if (family_ == OpsFamily::kCpu) {  // it sums both in float32; only bfloat16 then needs copies
    return {.result = 2 * half * element_, .most = 2 * half * (kFloatBytes + (cast_ > 0 ? element_ : Size(0)))};
  }
  // These are one result; float32 sums of the other, the terms that are added to them, and the memory that sorts its
  // indices.
  return op(2 * half * element_,
            half * (element_ + kFloatBytes) + entries * (shape_.kv_width * kFloatBytes + 8 * kIndexBytes));
}

// The float32 gradient of the cache exists during both steps.
OpBytes OpsPlan::attention_backward(const AttentionLoad& load) const {
  if (has_attention_kernel()) return flash_backward(load);
  const OpBytes query = query_gradient(load), kv = kv_gradient(load);
  const Size dcache = 2 * load.kv_blocks * kBlockTokens * shape_.kv_width * kFloatBytes;
  return {.result = query.result + kv.result, .most = dcache + std::max(query.most, query.result + kv.most)};
}

// This is at::_flash_attention_backward, deterministic, of as many keys as the sequences see in all. With at least as
// many sequences and heads as multiprocessors its sum over parts is one part.
OpBytes OpsPlan::flash_backward(const AttentionLoad& load) const {
  constexpr int64_t kRowsPadding = 128, kMultiprocessors = 132;
  const Size keys = load.expanded_keys, padded_rows = load.rows + kRowsPadding * load.sequences;
  const Size blocks = std::max<Size>(1, load.sequences * shape_.num_heads);
  const Size parts = (kMultiprocessors + blocks - 1) / blocks;
  const Size expanded = 2 * keys * shape_.kv_width * element_, dq = load.rows * shape_.q_width * element_;
  const Size sums = parts * padded_rows * shape_.q_width * kFloatBytes;
  // These are the logarithms and the sums of out * dout; gradients of keys and values for each query head, then for
  // each KV head.
  const Size rows = (load.rows + padded_rows) * shape_.num_heads * kFloatBytes;
  const Size by_head = 2 * keys * shape_.q_width * element_;
  const Size result = dq + 2 * load.rows * shape_.kv_width * element_;
  return {.result = result, .most = 2 * expanded + dq + sums + rows + by_head};
}

OpBytes OpsPlan::logprob(Size rows) const {
  if (has_kernels()) return {};
  return op(0, 2 * rows * shape_.vocab * kFloatBytes + 8 * rows * kIndexBytes);
}

OpBytes OpsPlan::logprob_backward(Size rows, Size columns, bool has_entropy_gradient) const {
  if (has_kernels()) return op(rows * columns * element_, 0);
  return op(0, (has_entropy_gradient ? 2 : 1) * rows * columns * kFloatBytes + 8 * rows * kIndexBytes);
}

Size OpsPlan::logits_gradient_bytes() const { return has_kernels() ? element_ : Size(kFloatBytes); }

OpBytes OpsPlan::embedding_backward(Size rows, Size gradient_bytes) const {
  if (has_kernels()) return op(0, 0, cuda::embedding_backward_scratch(rows));
  return op(0, rows * (gradient_bytes == kFloatBytes ? Size(0) : shape_.hidden * kFloatBytes) + 8 * rows * kIndexBytes);
}

OpBytes OpsPlan::adamw(Size elements) const { return op(0, elements * kFloatBytes); }

OpBytes OpsPlan::sums_of_squares(Size elements, Size block_elements) const {
  const Size blocks = (elements + block_elements - 1) / block_elements;
  if (has_kernels()) return op(0, 0, blocks * sizeof(double));
  return op(0, std::min(elements, std::max(Size(kCall.sum_elements), block_elements)) * sizeof(double));
}

Size OpsPlan::prepared(const AttentionLoad& load, bool has_backward) const {
  if (family_ == OpsFamily::kCpu) return 0;
  if (has_attention_kernel()) {
    // These are items, rows and the block table of cuda/attention_work.h, and the result of expand_rows().
    const Size table = load.sequences * load.longest_keys / kBlockTokens;
    const Size words = 6 * load.rows + table;
    const Size expanded = has_backward ? 2 * load.expanded_keys + load.rows + 2 * load.sequences + 3 : Size(0);
    return (words + expanded) * sizeof(int32_t);
  }
  const Size tiles = rounded_up(load.tiles, kCall.attention_tiles);
  const Size tile_blocks = rounded_up(load.longest_keys, kTileKeys) / kTileKeys * (kTileKeys / kBlockTokens);
  const Size indices = tiles * (2 * kTileRows + 1 + tile_blocks) + load.rows;
  // This is the mask of keys after each row, and the sequences' own indices.
  const Size hidden =
      load.rows * (load.longest_keys + kIndexBytes) + load.sequences * load.longest_keys / kBlockTokens * kIndexBytes;
  const Size kv = 2 * load.kv_blocks * kBlockTokens * kIndexBytes;
  return indices * kIndexBytes + (has_backward ? hidden + kv : Size(0));
}

Size cpu_kernel_bytes(const OpsShape& s, const CpuLoad& load, Size num_threads) {
  const Size qkv = s.q_width + 2 * s.kv_width;
  // The forward packs the rows of the batch over each width that a matrix reads.
  Size packed = 0;
  for (const Size inner : {s.hidden, s.q_width, s.mlp}) packed = std::max(packed, packed_bytes(load.rows, inner));
  packed = std::max(packed, packed_bytes(load.logits_rows, s.hidden));
  if (load.trains) {
    // Gradients of inputs read the widths that matrices write; gradients of weights read all rows of the batch.
    for (const Size inner : {qkv, s.hidden, 2 * s.mlp}) packed = std::max(packed, packed_bytes(load.rows, inner));
    packed = std::max(packed, packed_bytes(load.logits_rows, s.vocab));
    for (const Size rows : {qkv, s.hidden, 2 * s.mlp}) packed = std::max(packed, packed_bytes(rows, load.rows));
    packed = std::max(packed, packed_bytes(s.vocab, load.logits_rows));
  }
  const Size rotations = load.context * s.head_dim * kFloatBytes;
  return packed + num_threads * (kThreadBytes + attention_scratch_bytes(s, load.context)) + rotations;
}

}  // namespace tandem::device
