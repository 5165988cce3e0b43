#include "device/ops_plan.h"

#include <algorithm>

#include "device/block.h"

namespace tandem::device {
namespace {

constexpr int64_t kFloatBytes = 4;

constexpr AtenCallShape kCall;
constexpr int64_t kTileRows = kAttentionTileRows, kTileKeys = kAttentionTileKeys;
constexpr int64_t kIndexBytes = 8;

Size rounded_up(Size count, Size step) { return (count + step - 1) / step * step; }

}  // namespace

OpsPlan::OpsPlan(const OpsShape& shape, Size element_bytes)
    : shape_(shape), element_(element_bytes), cast_(element_bytes == kFloatBytes ? 0 : kFloatBytes) {}

OpBytes OpsPlan::op(Size result, Size aten_most) const {
  return {.result = result, .most = std::max(result, aten_most)};
}

// The last rows, fewer than a call's, are copied to padded tensors of a call's rows.
OpBytes OpsPlan::linear(Size rows, Size inner, Size outer, Size out_bytes) const {
  const Size result = rows * outer * out_bytes;
  return op(result, result + kCall.linear_rows * (inner * element_ + outer * out_bytes));
}

// The product comes first, then the sum.
OpBytes OpsPlan::linear_add(Size rows, Size inner) const {
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

OpBytes OpsPlan::linear_quantised(Size rows, Size inner, Size outer, Size out_bytes) const {
  const OpBytes product = linear(rows, inner, outer, out_bytes);
  return {.result = product.result, .most = product.most + inner * outer * element_};
}

OpBytes OpsPlan::linear_quantised_add(Size rows, Size inner) const {
  const OpBytes product = linear_quantised(rows, inner, shape_.hidden, element_), sum = add(rows);
  return {.result = sum.result, .most = std::max(product.most, product.result + sum.most)};
}

OpBytes OpsPlan::linear_quantised_grad_input(Size rows, Size inner, Size outer, Size out_bytes) const {
  const OpBytes product = linear_grad_input(rows, inner, outer, out_bytes);
  return {.result = product.result, .most = product.most + inner * outer * element_};
}

OpBytes OpsPlan::dropout(Size rows, Size width) const {
  const Size result = rows * width * element_;
  return {.result = result, .most = result};
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
  // The scratch is float32 of dy and x, unit, dunit, and their product.
  return op(count * element_, count * (2 * cast_ + 3 * kFloatBytes) + 3 * rows * kFloatBytes);
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
  // The scratch is float32 of dq and q, dq turned back, and what a norm's backward has: unit, dunit, their product.
  return op(result, result + rows * shape_.q_width * (2 * cast_ + 4 * kFloatBytes) + rotation + norms);
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

// The scratch is float32 of the gradient.
OpBytes OpsPlan::add_bias_backward(Size rows, Size width) const { return op(0, rows * width * cast_); }

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

// It takes as many bytes as silu_mul(): the number of which the sigmoid is taken is made in the sigmoid's own tensor.
OpBytes OpsPlan::gelu_mul(Size rows) const { return silu_mul(rows); }

OpBytes OpsPlan::gelu_mul_backward(Size rows) const {
  const Size count = rows * shape_.mlp, result = 2 * count * element_;
  // The temporaries are gate, up and dy in float32, the sigmoid, and two factors of the derivative.
  return op(result, result + count * (3 * cast_ + 3 * kFloatBytes));
}

// Ids, weights, places and sources of each place, and the first place of each expert. The temporaries are the logits
// without -0 and sorted with their indices; or what sorts the places.
OpBytes OpsPlan::route(Size rows) const {
  const Size result = places(rows) * 4 * sizeof(int32_t) + (shape_.experts + 1) * sizeof(int32_t);
  const Size choice = rows * shape_.experts * (2 * kFloatBytes + kIndexBytes);
  return op(result, std::max(choice, result + places(rows) * 5 * kIndexBytes));
}

// The temporaries are the exponentials, them once more for their sum, and the ids as indices.
OpBytes OpsPlan::route_backward(Size rows) const {
  const Size count = rows * shape_.experts;
  return op(count * element_,
            count * 3 * kFloatBytes + places(rows) * (kFloatBytes + kIndexBytes) + rows * kFloatBytes);
}

// All tokens may choose one expert, whose product is then as large as a dense one.
OpBytes OpsPlan::linear_of_experts(Size rows, Size inner, Size outer, Size out_bytes, bool gathers) const {
  const Size result = places(rows) * outer * out_bytes;
  OpBytes bytes = op(result, result + linear(rows, inner, outer, out_bytes).most);
  if (gathers) bytes.most += gathered(rows, inner);
  return bytes;
}

OpBytes OpsPlan::linear_of_experts_grad_input(Size rows, Size inner, Size outer, Size out_bytes, bool gathers) const {
  const Size result = places(rows) * inner * out_bytes;
  OpBytes bytes = op(result, result + linear_grad_input(rows, inner, outer, out_bytes).most);
  if (gathers) bytes.most += gathered(rows, outer);
  return bytes;
}

OpBytes OpsPlan::linear_of_experts_quantised(Size rows, Size inner, Size outer, Size out_bytes, bool gathers) const {
  OpBytes bytes = linear_of_experts(rows, inner, outer, out_bytes, gathers);
  bytes.most += shape_.experts * inner * outer * element_;
  return bytes;
}

OpBytes OpsPlan::linear_of_experts_quantised_grad_input(Size rows, Size inner, Size outer, Size out_bytes,
                                                        bool gathers) const {
  OpBytes bytes = linear_of_experts_grad_input(rows, inner, outer, out_bytes, gathers);
  bytes.most += shape_.experts * inner * outer * element_;
  return bytes;
}

OpBytes OpsPlan::linear_of_experts_grad_weight(Size rows, Size gathered_width) const {
  OpBytes bytes = op(0, places(rows) * sizeof(int32_t));  // the rows to gather
  bytes.most += gathered(rows, gathered_width);
  return bytes;
}

Size OpsPlan::gathered(Size rows, Size width) const { return places(rows) * width * element_; }

// The temporaries are the sum in float32, and the rows of one expert of each token, in float32 and times their weights.
OpBytes OpsPlan::sum_of_experts(Size rows, Size out_bytes) const {
  const Size count = rows * shape_.hidden;
  return op(count * out_bytes, count * 3 * kFloatBytes);
}

// The temporaries are gate, up, the gradient and it times the weight, sigmoid, the activation, and a product.
OpBytes OpsPlan::weighted_silu_backward(Size rows) const {
  const Size count = places(rows) * shape_.mlp, result = 3 * count * element_ + places(rows) * kFloatBytes;
  return op(result, result + count * (3 * cast_ + 4 * kFloatBytes) + 2 * places(rows) * kFloatBytes);
}

OpBytes OpsPlan::kv_append(Size entries) const {
  return op(0, entries * (shape_.kv_width * element_ + 2 * kIndexBytes + 2 * sizeof(int32_t)));
}

OpBytes OpsPlan::paged_attention(const AttentionLoad& load) const {
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
  // One result; float32 sums of the other, what is added to them, and what sorts its indices.
  return op(2 * half * element_,
            half * (element_ + kFloatBytes) + entries * (shape_.kv_width * kFloatBytes + 8 * kIndexBytes));
}

// The float32 gradient of the cache exists during both steps.
OpBytes OpsPlan::attention_backward(const AttentionLoad& load) const {
  const OpBytes query = query_gradient(load), kv = kv_gradient(load);
  const Size dcache = 2 * load.kv_blocks * kBlockTokens * shape_.kv_width * kFloatBytes;
  return {.result = query.result + kv.result, .most = dcache + std::max(query.most, query.result + kv.most)};
}

OpBytes OpsPlan::logprob(Size rows) const {
  return op(0, 2 * rows * shape_.vocab * kFloatBytes + 8 * rows * kIndexBytes);
}

OpBytes OpsPlan::logprob_backward(Size rows, Size columns, bool has_entropy_gradient) const {
  return op(0, (has_entropy_gradient ? 2 : 1) * rows * columns * kFloatBytes + 8 * rows * kIndexBytes);
}

Size OpsPlan::logits_gradient_bytes() const { return kFloatBytes; }

OpBytes OpsPlan::embedding_backward(Size rows, Size gradient_bytes) const {
  return op(0, rows * (gradient_bytes == kFloatBytes ? Size(0) : shape_.hidden * kFloatBytes) + 8 * rows * kIndexBytes);
}

OpBytes OpsPlan::adamw(Size elements) const { return op(0, elements * kFloatBytes); }

OpBytes OpsPlan::sums_of_squares(Size elements, Size block_elements) const {
  return op(0, std::min(elements, std::max(Size(kCall.sum_elements), block_elements)) * sizeof(double));
}

Size OpsPlan::prepared(const AttentionLoad& load, bool has_backward) const {
  const Size tiles = rounded_up(load.tiles, kCall.attention_tiles);
  const Size tile_blocks = rounded_up(load.longest_keys, kTileKeys) / kTileKeys * (kTileKeys / kBlockTokens);
  const Size indices = tiles * (2 * kTileRows + 2 + tile_blocks) + load.rows;
  // This is the mask of keys after each row, and the sequences' own indices.
  const Size hidden =
      load.rows * (load.longest_keys + kIndexBytes) + load.sequences * load.longest_keys / kBlockTokens * kIndexBytes;
  const Size kv = 2 * load.kv_blocks * kBlockTokens * kIndexBytes;
  return indices * kIndexBytes + (has_backward ? hidden + kv : Size(0));
}

}  // namespace tandem::device
