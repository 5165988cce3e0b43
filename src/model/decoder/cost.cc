#include "model/decoder/cost.h"

#include <algorithm>

#include "model/lora.h"
#include "model/registry.h"

namespace tandem::model::decoder {

constexpr int64_t kFloatBytes = 4;

namespace {

Size most_of_forward(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows,
                     const AttentionBytes& attention, const ProjectionCost& projection, bool has_graph) {
  const Size element = dtype_bytes(dtype), heads = config.num_heads * config.head_dim;
  const Sizes size(config, dtype, rows);
  const AdapterCost adapters(config, dtype, ops, rows);
  const LinearCost linear(config, dtype, ops, rows);
  Walk walk;
  projection.forward(walk, has_graph);
  // q, k and v live to the end of the block's forward(), and so does what attention gives.
  walk.run(attention.forward);
  // AttentionOutput
  linear.forward_add(walk, heads);
  adapters.forward(walk, "o");
  // SwigluMlp
  walk.run(norm_bytes(config, dtype, ops, rows));
  walk.run(ops.linear(rows, config.hidden, 2 * config.mlp, element));
  adapters.forward(walk, "gate_up");
  walk.drop(size.hidden);  // the norm's result
  walk.run(ops.silu_mul(rows));
  linear.forward_add(walk, config.mlp);
  adapters.forward(walk, "down");
  return walk.most();
}

Size most_of_mlp_backward(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows) {
  const Sizes size(config, dtype, rows);
  const AdapterCost adapters(config, dtype, ops, rows);
  Walk walk;
  const LinearCost linear(config, dtype, ops, rows);
  walk.run(ops.silu_mul(rows));
  linear.backward_of_add(walk, config.mlp);
  adapters.backward(walk, "down");
  walk.drop(size.activated);
  walk.run(ops.silu_mul_backward(rows));
  walk.run(norm_bytes(config, dtype, ops, rows));
  linear.hidden_gradient(walk, 2 * config.mlp);
  adapters.backward(walk, "gate_up");
  walk.drop(size.hidden);  // the norm's result
  walk.run(norm_backward_bytes(config, ops, rows));
  walk.run(ops.add(stream_rows(config, rows)));
  return walk.most();
}

// From the gradient of the block's middle, which is counted, to that of its input.
Size most_of_attention_backward(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows,
                                const AttentionBytes& attention, const ProjectionCost& projection) {
  const Sizes size(config, dtype, rows);
  Walk walk;
  walk.take(size.stream);  // the middle's gradient
  LinearCost(config, dtype, ops, rows).backward_of_add(walk, config.num_heads * config.head_dim);
  AdapterCost(config, dtype, ops, rows).backward(walk, "o");
  walk.run(attention.backward);
  walk.drop(size.q);  // the gradient of its result
  projection.backward(walk);
  return walk.most();
}

}  // namespace

void Walk::run(const device::OpBytes& op) {
  most_ = std::max(most_, alive_ + op.most);
  take(op.result);
}

void Walk::take(Size bytes) {
  alive_ += bytes;
  most_ = std::max(most_, alive_);
}

Sizes::Sizes(const ModelConfig& config, Dtype dtype, Size rows) {
  const Size element = dtype_bytes(dtype);
  hidden = hidden_bytes(config, dtype, rows);
  stream = stream_bytes(config, dtype, rows);
  q = rows * config.num_heads * config.head_dim * element;
  kv = 2 * rows * config.num_kv_heads * config.head_dim * element;
  qkv = q + kv;
  gate_up = 2 * rows * config.mlp * element;
  activated = gate_up / 2;
}

LinearCost::LinearCost(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows)
    : ops_(ops),
      ranks_(ops, config.shard.size),
      cuts_rows_(config.shard.cuts_rows()),
      rows_(rows),
      hidden_(config.hidden),
      element_(dtype_bytes(dtype)) {}

void LinearCost::sum(Walk& walk, const device::OpBytes& part) const {
  walk.run(part);
  walk.run(cuts_rows_ ? ranks_.sum_own_rows(rows_, hidden_, kFloatBytes, element_)
                      : ranks_.sum(rows_, hidden_, kFloatBytes, element_));
  walk.drop(part.result);
}

void LinearCost::forward_add(Walk& walk, Size inner) const {
  if (ranks_.is_alone()) return walk.run(ops_.linear_add(rows_, inner));
  sum(walk, ops_.linear(rows_, inner, hidden_, kFloatBytes));
}

void LinearCost::backward_of_add(Walk& walk, Size inner) const {
  const Size all_rows = cuts_rows_ ? rows_ * hidden_ * element_ : Size(0);  // of the gradient, gathered
  walk.take(all_rows);
  walk.run(ops_.linear_grad_input(rows_, inner, hidden_, element_));
  walk.drop(all_rows);
}

void LinearCost::hidden_gradient(Walk& walk, Size outer) const {
  if (ranks_.is_alone()) return walk.run(ops_.linear_grad_input(rows_, hidden_, outer, element_));
  sum(walk, ops_.linear_grad_input(rows_, hidden_, outer, kFloatBytes));
}

AdapterCost::AdapterCost(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows)
    : ops_(ops), rows_(rows), element_(dtype_bytes(dtype)), rank_(config.lora ? config.lora->rank : 0) {
  if (!config.lora) return;
  ModelConfig one_layer = config;  // all layers are alike
  one_layer.num_layers = 1;
  const weights::Layout layout = build_layout(one_layer);
  for (const auto& [name, windows] : adapter_windows(one_layer)) {
    const weights::PackedTensor& packed = layout.find(name);
    Shape& shape = matrices_[name.substr(name.rfind('.') + 1)];
    shape.inner = packed.shape[1];
    shape.outer = packed.shape[0];
    for (const AdapterWindow& window : windows) shape.widths.emplace_back(window.count);
  }
}

void AdapterCost::forward(Walk& walk, const std::string& matrix) const {
  const auto found = matrices_.find(matrix);
  if (found == matrices_.end()) return;
  const Shape& shape = found->second;
  const Size num_windows = static_cast<int64_t>(shape.widths.size());
  const device::OpBytes narrowed = ops_.linear(rows_, shape.inner, num_windows * rank_, element_);
  walk.run(narrowed);
  // A window's part of it is copied where there are several.
  const Size part = num_windows > 1 ? rows_ * rank_ * element_ : Size(0);
  for (const Size width : shape.widths) {
    walk.run({.result = 0, .most = part + ops_.linear_add_to(rows_, rank_, width).most});
  }
  walk.drop(narrowed.result);
}

void AdapterCost::backward(Walk& walk, const std::string& matrix) const {
  const auto found = matrices_.find(matrix);
  if (found == matrices_.end()) return;
  const Shape& shape = found->second;
  const Size num_windows = static_cast<int64_t>(shape.widths.size()), part = rows_ * rank_ * element_;
  const device::OpBytes narrowed = ops_.linear(rows_, shape.inner, num_windows * rank_, element_);
  walk.run(narrowed);
  for (const Size width : shape.widths) {
    // The columns of a window are copied, unless they are all.
    const Size copied = width < shape.outer ? rows_ * width * element_ : Size(0);
    const Size of_b = num_windows > 1 ? part : Size(0);
    const device::OpBytes gradient = ops_.linear_grad_input(rows_, rank_, width, element_);
    walk.run({.result = gradient.result, .most = copied + std::max(of_b, gradient.most)});
  }
  if (num_windows > 1) {
    walk.take(num_windows * part);
    walk.drop(num_windows * part);  // the parts
  }
  walk.drop(narrowed.result);
  walk.run({.result = 0, .most = ops_.linear_grad_input(rows_, shape.inner, num_windows * rank_, element_).most});
  walk.drop(num_windows * part);
}

BlockBytes block_bytes(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows,
                       const AttentionBytes& attention, const ProjectionCost& projection) {
  const Sizes size(config, dtype, rows);
  BlockBytes block;
  block.mlp_graph = size.stream + size.gate_up;  // the middle, gate and up
  // Attention's backward reads q and its result.
  block.graph = projection.kept + size.q + size.q + attention.kept + block.mlp_graph;
  block.forward = attention.kept + most_of_forward(config, dtype, ops, rows, attention, projection, /*has_graph=*/true);
  block.inference = most_of_forward(config, dtype, ops, rows, attention, projection, /*has_graph=*/false);
  block.mlp_backward = most_of_mlp_backward(config, dtype, ops, rows);
  block.attention_backward = most_of_attention_backward(config, dtype, ops, rows, attention, projection);
  return block;
}

BlockBytes rotary_block_bytes(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows,
                              const AttentionBytes& attention, bool has_bias) {
  const Sizes size(config, dtype, rows);
  const AdapterCost adapters(config, dtype, ops, rows);
  const Size qkv_width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim;
  ProjectionCost projection;
  projection.forward = [&](Walk& walk, bool /*has_graph*/) {
    walk.run(norm_bytes(config, dtype, ops, rows));
    walk.run(ops.linear(rows, config.hidden, qkv_width, dtype_bytes(dtype)));
    adapters.forward(walk, "qkv");
    walk.drop(size.hidden);  // the norm's result; a bias is added in place
    walk.run(ops.rope(rows));
    walk.drop(size.qkv);
  };
  projection.backward = [&](Walk& walk) {
    walk.run(ops.rope_backward(rows));
    walk.run(norm_bytes(config, dtype, ops, rows));
    if (has_bias) walk.run(ops.add_bias_backward(rows, qkv_width));
    LinearCost(config, dtype, ops, rows).hidden_gradient(walk, qkv_width);
    adapters.backward(walk, "qkv");
    walk.drop(size.hidden);  // the norm's result
    walk.run(norm_backward_bytes(config, ops, rows));
  };
  return block_bytes(config, dtype, ops, rows, attention, projection);
}

double forward_flops(const ModelConfig& config, const ForwardWork& work) {
  const auto hidden = static_cast<double>(config.hidden), layers = static_cast<double>(config.num_layers);
  const auto heads = static_cast<double>(config.num_heads * config.head_dim);
  const auto kv_heads = static_cast<double>(config.num_kv_heads * config.head_dim);
  const double layer = hidden * (2 * heads + 2 * kv_heads) + 3 * hidden * static_cast<double>(config.mlp);
  return 2 * work.rows * layer * layers +
         2 * work.logit_rows * hidden * static_cast<double>(vocab_rows(config).count()) +
         4 * work.key_pairs * heads * layers;
}

}  // namespace tandem::model::decoder
