#include "model/model_plan.h"

#include <algorithm>

#include "device/block.h"

namespace tandem::model {

namespace {

// Bytes that are alive, and the most that ever were.
class Walk {
 public:
  void run(const device::OpBytes& op) {
    most_ = std::max(most_, alive_ + op.most);
    take(op.result);
  }
  void take(Size bytes) {
    alive_ += bytes;
    most_ = std::max(most_, alive_);
  }
  void drop(Size bytes) { alive_ -= bytes; }
  Size most() const { return most_; }

 private:
  Size alive_ = 0, most_ = 0;
};

// The tensors of a block.
struct Sizes {
  Sizes(const ModelConfig& config, Size element_bytes, Size rows)
      : hidden(rows * config.hidden * element_bytes),
        q(rows * config.num_heads * config.head_dim * element_bytes),
        kv(2 * rows * config.num_kv_heads * config.head_dim * element_bytes),
        qkv(q + kv),
        gate_up(2 * rows * config.mlp * element_bytes),
        activated(gate_up / 2) {}
  Size hidden, q, kv, qkv, gate_up, activated;
};

// Qwen3Block::forward(). What the graph keeps is not dropped where there is one.
Size most_of_forward(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows,
                     const AttentionBytes& attention, bool has_graph) {
  const Size element = dtype_bytes(dtype), heads = config.num_heads * config.head_dim;
  const Sizes size(config, element, rows);
  Walk walk;
  // project_qkv
  walk.run(ops.rms_norm(rows));
  walk.run(ops.linear(rows, config.hidden, heads + 2 * config.num_kv_heads * config.head_dim, element));
  walk.drop(size.hidden);  // the norm's result
  walk.run(ops.qk_norm_rope(rows));
  if (!has_graph) walk.drop(size.qkv);
  // q, k and v live to the end of forward(), and so does what attention gives.
  walk.run(attention.forward);
  // project_attended
  walk.run(ops.linear(rows, heads, config.hidden, element));
  walk.run(ops.add(rows));
  walk.drop(size.hidden);  // the product
  // mlp
  walk.run(ops.rms_norm(rows));
  walk.run(ops.linear(rows, config.hidden, 2 * config.mlp, element));
  walk.drop(size.hidden);  // the norm's result
  walk.run(ops.silu_mul(rows));
  walk.run(ops.linear(rows, config.mlp, config.hidden, element));
  walk.run(ops.add(rows));
  return walk.most();
}

Size most_of_mlp_backward(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows) {
  const Sizes size(config, dtype_bytes(dtype), rows);
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
                                const AttentionBytes& attention) {
  const Size heads = config.num_heads * config.head_dim;
  const Sizes size(config, dtype_bytes(dtype), rows);
  Walk walk;
  walk.take(size.hidden);  // the middle's gradient
  walk.run(ops.linear_grad_input(rows, heads, config.hidden));
  walk.run(attention.backward);
  walk.drop(size.q);  // the gradient of its result
  walk.run(ops.qk_norm_rope_backward(rows));
  walk.run(ops.rms_norm(rows));
  walk.run(ops.linear_grad_input(rows, config.hidden, heads + 2 * config.num_kv_heads * config.head_dim));
  walk.drop(size.hidden);  // the norm's result
  walk.run(ops.rms_norm_backward(rows));
  return walk.most();
}

}  // namespace

device::OpsPlan ops_plan(device::OpsFamily family, const ModelConfig& config, Dtype dtype) {
  return {family, ops_shape(config), dtype_bytes(dtype)};
}

BlockBytes block_bytes(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows,
                       const AttentionBytes& attention) {
  const Sizes size(config, dtype_bytes(dtype), rows);
  BlockBytes block;
  block.mlp_graph = size.hidden + size.gate_up;  // the middle, gate and up
  block.graph = size.qkv + size.q + size.q + attention.kept + block.mlp_graph;
  block.forward = attention.kept + most_of_forward(config, dtype, ops, rows, attention, /*has_graph=*/true);
  block.inference = most_of_forward(config, dtype, ops, rows, attention, /*has_graph=*/false);
  block.mlp_backward = most_of_mlp_backward(config, dtype, ops, rows);
  block.attention_backward = most_of_attention_backward(config, dtype, ops, rows, attention);
  return block;
}

Size hidden_bytes(const ModelConfig& config, Dtype dtype, Size rows) {
  return rows * config.hidden * dtype_bytes(dtype);
}

Size layer_kv_block_bytes(const ModelConfig& config, Size element_bytes) {
  return 2 * config.num_kv_heads * config.head_dim * device::kBlockTokens * element_bytes;
}

device::OpsShape ops_shape(const ModelConfig& config) {
  device::OpsShape shape;
  shape.hidden = config.hidden;
  shape.q_width = config.num_heads * config.head_dim;
  shape.kv_width = config.num_kv_heads * config.head_dim;
  shape.mlp = config.mlp;
  shape.vocab = config.vocab;
  shape.num_heads = config.num_heads;
  shape.num_kv_heads = config.num_kv_heads;
  shape.head_dim = config.head_dim;
  return shape;
}

}  // namespace tandem::model
