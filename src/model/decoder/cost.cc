#include "model/decoder/cost.h"

#include <algorithm>

namespace tandem::model::decoder {
namespace {

Size most_of_forward(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows,
                     const AttentionBytes& attention, const ProjectionCost& projection, bool has_graph) {
  const Size element = dtype_bytes(dtype), heads = config.num_heads * config.head_dim;
  const Sizes size(config, dtype, rows);
  Walk walk;
  projection.forward(walk, has_graph);
  // q, k and v live to the end of the block's forward(), and so does what attention gives.
  walk.run(attention.forward);
  // AttentionOutput
  walk.run(ops.linear_add(rows, heads));
  // SwigluMlp
  walk.run(ops.rms_norm(rows));
  walk.run(ops.linear(rows, config.hidden, 2 * config.mlp, element));
  walk.drop(size.hidden);  // the norm's result
  walk.run(ops.silu_mul(rows));
  walk.run(ops.linear_add(rows, config.mlp));
  return walk.most();
}

Size most_of_mlp_backward(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows) {
  const Sizes size(config, dtype, rows);
  Walk walk;
  walk.run(ops.silu_mul(rows));
  walk.run(ops.linear_grad_input(rows, config.mlp, config.hidden));
  walk.drop(size.activated);
  walk.run(ops.silu_mul_backward(rows));
  walk.run(ops.rms_norm(rows));
  walk.run(ops.linear_grad_input(rows, config.hidden, 2 * config.mlp));
  walk.drop(size.hidden);  // the norm's result
  walk.run(ops.rms_norm_backward(rows));
  walk.run(ops.add(rows));
  return walk.most();
}

// From the gradient of the block's middle, which is counted, to that of its input.
Size most_of_attention_backward(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows,
                                const AttentionBytes& attention, const ProjectionCost& projection) {
  const Sizes size(config, dtype, rows);
  Walk walk;
  walk.take(size.hidden);  // the middle's gradient
  walk.run(ops.linear_grad_input(rows, config.num_heads * config.head_dim, config.hidden));
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
  hidden = rows * config.hidden * element;
  q = rows * config.num_heads * config.head_dim * element;
  kv = 2 * rows * config.num_kv_heads * config.head_dim * element;
  qkv = q + kv;
  gate_up = 2 * rows * config.mlp * element;
  activated = gate_up / 2;
}

BlockBytes block_bytes(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows,
                       const AttentionBytes& attention, const ProjectionCost& projection) {
  const Sizes size(config, dtype, rows);
  BlockBytes block;
  block.mlp_graph = size.hidden + size.gate_up;  // the middle, gate and up
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
  const Size qkv_width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim;
  ProjectionCost projection;
  projection.forward = [&](Walk& walk, bool /*has_graph*/) {
    walk.run(ops.rms_norm(rows));
    walk.run(ops.linear(rows, config.hidden, qkv_width, dtype_bytes(dtype)));
    walk.drop(size.hidden);  // the norm's result; a bias is added in place
    walk.run(ops.rope(rows));
    walk.drop(size.qkv);
  };
  projection.backward = [&](Walk& walk) {
    walk.run(ops.rope_backward(rows));
    walk.run(ops.rms_norm(rows));
    if (has_bias) walk.run(ops.add_bias_backward(rows, qkv_width));
    walk.run(ops.linear_grad_input(rows, config.hidden, qkv_width));
    walk.drop(size.hidden);  // the norm's result
    walk.run(ops.rms_norm_backward(rows));
  };
  return block_bytes(config, dtype, ops, rows, attention, projection);
}

double forward_flops(const ModelConfig& config, const ForwardWork& work) {
  const auto hidden = static_cast<double>(config.hidden), layers = static_cast<double>(config.num_layers);
  const auto heads = static_cast<double>(config.num_heads * config.head_dim);
  const auto kv_heads = static_cast<double>(config.num_kv_heads * config.head_dim);
  const double layer = hidden * (2 * heads + 2 * kv_heads) + 3 * hidden * static_cast<double>(config.mlp);
  return 2 * work.rows * layer * layers + 2 * work.logit_rows * hidden * static_cast<double>(config.vocab) +
         4 * work.key_pairs * heads * layers;
}

}  // namespace tandem::model::decoder
