#include "model/decoder/cost.h"

#include <algorithm>

#include "model/decoder/rope.h"
#include "model/lora.h"
#include "model/registry.h"

namespace tandem::model::decoder {

constexpr int64_t kFloatBytes = 4;

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
  gate_up = 2 * rows * (config.experts ? config.experts->chosen : 1) * config.mlp_width() * element;
  activated = gate_up / 2;
}

LinearCost::LinearCost(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows)
    : ops_(ops),
      ranks_(ops, config.shard.size),
      cuts_rows_(config.shard.cuts_rows()),
      is_quantised_(config.is_quantised()),
      rows_(rows),
      hidden_(config.hidden),
      element_(dtype_bytes(dtype)) {}

void LinearCost::sum(Walk& walk, const device::OpBytes& part) const {
  walk.run(part);
  walk.run(cuts_rows_ ? ranks_.sum_own_rows(rows_, hidden_, kFloatBytes, element_)
                      : ranks_.sum(rows_, hidden_, kFloatBytes, element_));
  walk.drop(part.result);
}

device::OpBytes LinearCost::product(Size inner, Size outer) const {
  return is_quantised_ ? ops_.linear_quantised(rows_, inner, outer, element_)
                       : ops_.linear(rows_, inner, outer, element_);
}

device::OpBytes LinearCost::input_gradient(Size inner, Size outer) const {
  return is_quantised_ ? ops_.linear_quantised_grad_input(rows_, inner, outer, element_)
                       : ops_.linear_grad_input(rows_, inner, outer, element_);
}

void LinearCost::forward(Walk& walk, Size inner, Size outer) const { walk.run(product(inner, outer)); }

void LinearCost::forward_add(Walk& walk, Size inner) const {
  if (is_quantised_) return walk.run(ops_.linear_quantised_add(rows_, inner));
  if (ranks_.is_alone()) return walk.run(ops_.linear_add(rows_, inner));
  sum(walk, ops_.linear(rows_, inner, hidden_, kFloatBytes));
}

void LinearCost::gradient_of_add(Walk& walk, Size inner) const { walk.run(input_gradient(inner, hidden_)); }

void LinearCost::hidden_gradient(Walk& walk, Size outer) const {
  if (ranks_.is_alone()) return walk.run(input_gradient(hidden_, outer));
  sum(walk, ops_.linear_grad_input(rows_, hidden_, outer, kFloatBytes));
}

AdapterCost::AdapterCost(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows)
    : ops_(ops),
      rows_(rows),
      element_(dtype_bytes(dtype)),
      rank_(config.lora ? config.lora->rank : 0),
      has_dropout_(config.lora && config.lora->dropout > 0.0) {
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

void AdapterCost::narrowed(Walk& walk, const Shape& shape) const {
  const Size num_windows = static_cast<int64_t>(shape.widths.size());
  if (!has_dropout_) return walk.run(ops_.linear(rows_, shape.inner, num_windows * rank_, element_));
  const device::OpBytes dropped = ops_.dropout(rows_, shape.inner);
  for (Size window = 0; window < num_windows; window += 1) {
    walk.run(dropped);
    walk.run(ops_.linear(rows_, shape.inner, rank_, element_));
    walk.drop(dropped.result);
  }
  if (num_windows == 1) return;
  walk.take(num_windows * rows_ * rank_ * element_);
  walk.drop(num_windows * rows_ * rank_ * element_);  // the parts
}

void AdapterCost::forward(Walk& walk, const std::string& matrix) const {
  const auto found = matrices_.find(matrix);
  if (found == matrices_.end()) return;
  const Shape& shape = found->second;
  const Size num_windows = static_cast<int64_t>(shape.widths.size());
  narrowed(walk, shape);
  // A window's part of it is copied where there are several.
  const Size part = num_windows > 1 ? rows_ * rank_ * element_ : Size(0);
  for (const Size width : shape.widths) {
    walk.run({.result = 0, .most = part + ops_.linear_add_to(rows_, rank_, width).most});
  }
  walk.drop(num_windows * rows_ * rank_ * element_);
}

void AdapterCost::input_gradient(Walk& walk, const std::string& matrix) const {
  const auto found = matrices_.find(matrix);
  if (found == matrices_.end()) return;
  const Shape& shape = found->second;
  const Size num_windows = static_cast<int64_t>(shape.widths.size()), part = rows_ * rank_ * element_;
  for (const Size width : shape.widths) {
    const device::OpBytes gradient = ops_.linear_grad_input(rows_, rank_, width, element_);
    walk.run({.result = gradient.result, .most = copied(shape, width) + gradient.most});
  }
  if (num_windows > 1) {
    walk.take(num_windows * part);
    walk.drop(num_windows * part);  // the parts
  }
  if (has_dropout_) {
    // The input's gradient of a window, and what dropout leaves of it
    const device::OpBytes gradient = ops_.linear_grad_input(rows_, shape.inner, rank_, element_);
    walk.run({.result = 0,
              .most = (num_windows > 1 ? part : Size(0)) +
                      std::max(gradient.most, gradient.result + ops_.dropout(rows_, shape.inner).most)});
  } else {
    walk.run({.result = 0, .most = ops_.linear_grad_input(rows_, shape.inner, num_windows * rank_, element_).most});
  }
}

void AdapterCost::weight_gradient(Walk& walk, const std::string& matrix) const {
  const auto found = matrices_.find(matrix);
  if (found == matrices_.end()) return;
  const Shape& shape = found->second;
  const Size num_windows = static_cast<int64_t>(shape.widths.size()), part = rows_ * rank_ * element_;
  const Size part_of_several = num_windows > 1 ? part : Size(0);
  narrowed(walk, shape);
  for (const Size width : shape.widths) walk.run({.result = 0, .most = copied(shape, width) + part_of_several});
  walk.drop(num_windows * part);
  if (has_dropout_) walk.run({.result = 0, .most = part_of_several + ops_.dropout(rows_, shape.inner).most});
  walk.drop(num_windows * part);
}

Size AdapterCost::copied(const Shape& shape, Size width) const {
  return width < shape.outer ? rows_ * width * element_ : Size(0);
}

std::vector<Size> AdapterCost::widths(const std::string& matrix) const {
  const auto found = matrices_.find(matrix);
  return found == matrices_.end() ? std::vector<Size>() : found->second.widths;
}

ExpertsLinearCost::ExpertsLinearCost(const LayerCost& layer, const std::string& matrix, Size inner, Size outer)
    : ops_(layer.ops),
      is_quantised_(layer.config.is_quantised()),
      rows_(layer.rows),
      places_(layer.rows * layer.config.experts->chosen),
      element_(layer.element),
      rank_(layer.adapters.rank()),
      inner_(inner),
      outer_(outer),
      widths_(layer.adapters.widths(matrix)),
      num_windows_(static_cast<int64_t>(widths_.size())) {}

void ExpertsLinearCost::narrowed(Walk& walk, bool gathers) const {
  walk.run(ops_.linear_of_experts(rows_, inner_, num_windows_ * rank_, element_, gathers));
}

Size ExpertsLinearCost::copied(Size width, bool gathers) const {
  return width < outer_ ? (gathers ? rows_ : places_) * width * element_ : Size(0);
}

device::OpBytes ExpertsLinearCost::product(Size out_bytes, bool gathers) const {
  return is_quantised_ ? ops_.linear_of_experts_quantised(rows_, inner_, outer_, out_bytes, gathers)
                       : ops_.linear_of_experts(rows_, inner_, outer_, out_bytes, gathers);
}

device::OpBytes ExpertsLinearCost::product_with_gradient(Size out_bytes, bool gathers) const {
  return is_quantised_ ? ops_.linear_of_experts_quantised_grad_input(rows_, inner_, outer_, out_bytes, gathers)
                       : ops_.linear_of_experts_grad_input(rows_, inner_, outer_, out_bytes, gathers);
}

Size ExpertsLinearCost::forward(Walk& walk, Size out_bytes, bool gathers) const {
  const device::OpBytes whole = product(out_bytes, gathers);
  walk.run(whole);
  if (widths_.empty()) return whole.result;
  narrowed(walk, gathers);
  const Size part = num_windows_ > 1 ? narrow_bytes(1) : Size(0);
  for (const Size width : widths_) {
    const device::OpBytes added = ops_.linear_of_experts(rows_, rank_, width, out_bytes, /*gathers=*/false);
    walk.run({.result = 0, .most = part + added.most});
  }
  walk.drop(narrow_bytes(num_windows_));
  return whole.result;
}

void ExpertsLinearCost::input_gradient(Walk& walk, Size out_bytes, bool gathers) const {
  walk.run(product_with_gradient(out_bytes, gathers));
  if (widths_.empty()) return;
  narrowed_gradient(walk, gathers);
  const device::OpBytes added =
      ops_.linear_of_experts_grad_input(rows_, inner_, num_windows_ * rank_, out_bytes, /*gathers=*/false);
  walk.run({.result = 0, .most = added.most});
  walk.drop(narrow_bytes(num_windows_));
}

void ExpertsLinearCost::narrowed_gradient(Walk& walk, bool gathers) const {
  for (const Size width : widths_) {
    const device::OpBytes part = ops_.linear_of_experts_grad_input(rows_, rank_, width, element_, gathers);
    walk.run({.result = part.result, .most = copied(width, gathers) + part.most});
  }
  if (num_windows_ == 1) return;
  walk.take(narrow_bytes(num_windows_));
  walk.drop(narrow_bytes(num_windows_));  // the parts
}

void ExpertsLinearCost::weight_gradient(Walk& walk, bool gathers_dy, bool gathers_x) const {
  const auto gradient = [&](Size dy_width, Size x_width) {
    return ops_.linear_of_experts_grad_weight(rows_,
                                              (gathers_dy ? dy_width : Size(0)) + (gathers_x ? x_width : Size(0)));
  };
  walk.run(gradient(outer_, inner_));
  if (widths_.empty()) return;
  narrowed(walk, gathers_x);
  const Size part = num_windows_ > 1 ? narrow_bytes(1) : Size(0);
  for (const Size width : widths_) {
    const Size of_b = ops_.linear_of_experts_grad_weight(rows_, gathers_dy ? width : Size(0)).most;
    walk.run({.result = 0, .most = copied(width, gathers_dy) + part + of_b});
  }
  narrowed_gradient(walk, gathers_dy);
  walk.run(ops_.linear_of_experts_grad_weight(rows_, gathers_x ? inner_ : Size(0)));
  walk.drop(2 * narrow_bytes(num_windows_));
}

LayerCost::LayerCost(const ModelConfig& config, const Family& family, Dtype dtype, const device::OpsPlan& ops,
                     Size rows, Size routing_loss)
    : config(config),
      family(family),
      dtype(dtype),
      ops(ops),
      rows(rows),
      element(dtype_bytes(dtype)),
      routing_loss(routing_loss),
      size(config, dtype, rows),
      linear(config, dtype, ops, rows),
      adapters(config, dtype, ops, rows) {}

namespace {

// Walks PieceNorms::input(), whose result stays, and returns its bytes: 0 where the piece reads the stream itself.
Size walk_input(Walk& walk, const LayerCost& layer, const char* input_norm) {
  if (input_norm == nullptr) return 0;
  walk.run(layer.norm());
  return layer.size.hidden;
}

// Walks PieceNorms::add(), the product of so many columns with a packed matrix, and its adapter.
void walk_add(Walk& walk, const LayerCost& layer, Size inner, const std::string& matrix, const char* output_norm,
              bool has_graph) {
  if (output_norm == nullptr) {
    layer.linear.forward_add(walk, inner);
    return layer.adapters.forward(walk, matrix);
  }
  layer.linear.forward(walk, inner, layer.config.hidden);
  layer.adapters.forward(walk, matrix);
  walk.run(layer.norm());
  walk.run(layer.ops.add(layer.rows));
  walk.drop(has_graph ? layer.size.hidden : 2 * layer.size.hidden);  // the norm's result, and the product
}

// Walks the backward of add(), from the gradient of the sum, which stays, to that of the matrix's input.
void walk_backward_of_add(Walk& walk, const LayerCost& layer, Size inner, const std::string& matrix,
                          const char* output_norm) {
  if (output_norm != nullptr) walk.run(layer.norm_backward());
  walk.take(layer.linear.gathered());
  layer.linear.gradient_of_add(walk, inner);
  layer.adapters.input_gradient(walk, matrix);
  layer.adapters.weight_gradient(walk, matrix);
  walk.drop(layer.linear.gathered());
  if (output_norm != nullptr) walk.drop(layer.size.hidden);
}

// Returns how many rows of the hidden width have the elements of q's: Rotation's norms are planned as those of rows.
Size rows_of_queries(const LayerCost& layer) {
  const Size heads = layer.config.num_heads * layer.config.head_dim, hidden = layer.config.hidden;
  return (layer.rows * heads + hidden - 1) / hidden;
}

// Walks Rotation::forward() from qkv, which stays only where the backward's norms read it.
void walk_rotation(Walk& walk, const LayerCost& layer, bool has_graph) {
  const QkNorm norm = layer.family.qk_norm;
  if (norm == QkNorm::kWhole) {
    walk.take(layer.size.qkv + layer.size.q);  // the result, and a copy of q
    walk.run(layer.ops.rms_norm(rows_of_queries(layer)));
    walk.drop(2 * layer.size.q);
  }
  const bool reorders = reorders_heads(layer.config, layer.family);
  if (reorders) walk.take(layer.size.qkv);
  walk.run(norm == QkNorm::kHead ? layer.ops.qk_norm_rope(layer.rows) : layer.ops.rope(layer.rows));
  if (norm == QkNorm::kWhole) walk.drop(layer.size.qkv);
  if (reorders) walk.drop(layer.size.qkv);
  if (norm == QkNorm::kNone || !has_graph) walk.drop(layer.size.qkv);
}

// Walks Rotation::backward() from the gradients of q, k and v, which stay, to that of qkv.
void walk_rotation_backward(Walk& walk, const LayerCost& layer) {
  const QkNorm norm = layer.family.qk_norm;
  const Size scaled = layer.config.scales_queries() ? layer.size.q : Size(0);
  walk.take(scaled);
  walk.run(norm == QkNorm::kHead ? layer.ops.qk_norm_rope_backward(layer.rows) : layer.ops.rope_backward(layer.rows));
  if (norm == QkNorm::kHead && !layer.linear.ranks().is_alone()) {
    // The gradients of q_norm and k_norm for the own heads live until those for all heads are added up.
    walk.take(2 * layer.config.head_dim * kFloatBytes);
    walk.run(layer.linear.ranks().sum(2, layer.config.head_dim, kFloatBytes, kFloatBytes));
    walk.drop(2 * 2 * layer.config.head_dim * kFloatBytes);
  }
  if (reorders_heads(layer.config, layer.family)) {
    walk.take(layer.size.qkv);
    walk.drop(layer.size.qkv);
  }
  if (norm == QkNorm::kWhole) {
    walk.take(2 * layer.size.q);  // copies of q and of its gradient
    walk.run(layer.ops.rms_norm_backward(rows_of_queries(layer)));
    walk.drop(3 * layer.size.q);
  }
  walk.drop(scaled);
}

// Walks AttentionPiece::project().
void walk_projection(Walk& walk, const LayerCost& layer, bool has_graph) {
  const Size input = walk_input(walk, layer, layer.family.norms.attention_input);
  layer.linear.forward(walk, layer.config.hidden, layer.qkv_width());
  layer.adapters.forward(walk, "qkv");
  walk.drop(input);  // a bias is added in place
  walk_rotation(walk, layer, has_graph);
}

// Walks from the gradients of q, k and v, which stay, to that of the input.
void walk_projection_backward(Walk& walk, const LayerCost& layer) {
  walk_rotation_backward(walk, layer);
  const char* const input_norm = layer.family.norms.attention_input;
  const Size input = walk_input(walk, layer, input_norm);
  layer.linear.hidden_gradient(walk, layer.qkv_width());
  layer.adapters.input_gradient(walk, "qkv");
  if (layer.family.qkv_bias || layer.config.attention_bias)
    walk.run(layer.ops.add_bias_backward(layer.rows, layer.qkv_width()));
  layer.adapters.weight_gradient(walk, "qkv");
  walk.drop(input);
  if (input_norm != nullptr) walk.run(layer.norm_backward());
}

PieceCost attention_cost(const LayerCost& layer, const AttentionBytes& attention) {
  const Size heads = layer.config.num_heads * layer.config.head_dim;
  const char* const output_norm = layer.family.norms.attention_output;
  PieceCost piece;
  // The backward of the norms of q and k reads qkv, attention's reads q and its result, an output norm's its input.
  piece.graph = (layer.family.qk_norm != QkNorm::kNone ? layer.size.qkv : Size(0)) + layer.size.q + layer.size.q +
                attention.kept + (output_norm != nullptr ? layer.size.hidden : Size(0));
  piece.forward = [&layer, &attention, heads, output_norm](Walk& walk, bool has_graph) {
    walk_projection(walk, layer, has_graph);
    // q, k and v live to the end of the block's forward(), and so does what attention gives.
    walk.run(attention.forward);
    walk_add(walk, layer, heads, "o", output_norm, has_graph);
  };
  piece.backward = [&layer, &attention, heads, output_norm](Walk& walk) {
    walk.take(layer.size.stream);  // the gradient of the piece's result
    walk_backward_of_add(walk, layer, heads, "o", output_norm);
    walk.run(attention.backward);
    walk.drop(layer.size.q);  // the gradient of attention's result
    walk_projection_backward(walk, layer);
  };
  return piece;
}

PieceCost gated_cost(const LayerCost& layer) {
  const char *const input_norm = layer.family.norms.mlp_input, *const output_norm = layer.family.norms.mlp_output;
  const bool is_silu = layer.family.activation == Activation::kSilu;
  PieceCost piece;
  // The middle, gate and up, and what an output norm reads
  piece.graph = layer.size.stream + layer.size.gate_up + (output_norm != nullptr ? layer.size.hidden : Size(0));
  piece.forward = [&layer, is_silu, input_norm, output_norm](Walk& walk, bool has_graph) {
    const Size input = walk_input(walk, layer, input_norm);
    layer.linear.forward(walk, layer.config.hidden, 2 * layer.config.mlp);
    layer.adapters.forward(walk, "gate_up");
    walk.drop(input);
    walk.run(is_silu ? layer.ops.silu_mul(layer.rows) : layer.ops.gelu_mul(layer.rows));
    walk_add(walk, layer, layer.config.mlp, "down", output_norm, has_graph);
  };
  piece.backward = [&layer, is_silu, input_norm, output_norm](Walk& walk) {
    if (output_norm != nullptr) walk.run(layer.norm_backward());  // stays to the end
    walk.take(layer.linear.gathered());
    layer.linear.gradient_of_add(walk, layer.config.mlp);
    layer.adapters.input_gradient(walk, "down");
    walk.run(is_silu ? layer.ops.silu_mul_backward(layer.rows) : layer.ops.gelu_mul_backward(layer.rows));
    layer.adapters.weight_gradient(walk, "down");
    walk.drop(layer.linear.gathered() + layer.size.activated);
    const Size input = walk_input(walk, layer, input_norm);
    layer.linear.hidden_gradient(walk, 2 * layer.config.mlp);
    layer.adapters.input_gradient(walk, "gate_up");
    layer.adapters.weight_gradient(walk, "gate_up");
    walk.drop(input);
    if (input_norm != nullptr) walk.run(layer.norm_backward());
    walk.run(layer.ops.add(stream_rows(layer.config, layer.rows)));
  };
  return piece;
}

// Walks the sum over the places of a token, and over the ranks. What is `gone` is dropped between the two.
void walk_sum_of_places(Walk& walk, const LayerCost& layer, Size gone) {
  const TensorRanksPlan& ranks = layer.linear.ranks();
  const device::OpBytes part =
      layer.ops.sum_of_experts(layer.rows, ranks.is_alone() ? layer.element : Size(kFloatBytes));
  walk.run(part);
  walk.drop(gone);
  if (ranks.is_alone()) return;
  walk.run(layer.config.shard.cuts_rows()
               ? ranks.sum_own_rows(layer.rows, layer.config.hidden, kFloatBytes, layer.element)
               : ranks.sum(layer.rows, layer.config.hidden, kFloatBytes, layer.element));
  walk.drop(part.result);
}

// Walks the operations of SparseMlp::router_gradient().
void walk_router_gradient(Walk& walk, const LayerCost& layer) {
  const device::OpsPlan& ops = layer.ops;
  const ExpertsConfig& experts = *layer.config.experts;
  const TensorRanksPlan& ranks = layer.linear.ranks();
  const Size of_ranks = ranks.is_alone() ? Size(0) : layer.rows * experts.chosen * kFloatBytes;
  if (!ranks.is_alone()) walk.run(ranks.sum(layer.rows, experts.chosen, kFloatBytes, kFloatBytes));
  const device::OpBytes logits = ops.linear(layer.rows, layer.config.hidden, experts.count, kFloatBytes);
  const device::OpBytes dlogits = ops.route_backward(layer.rows);
  walk.run(logits);
  const Size of_loss = layer.routing_loss > 0 ? logits.result : Size(0);  // float32, as the other gradient is then
  walk.run({.result = of_loss, .most = layer.routing_loss});
  walk.run(dlogits);
  if (of_loss > 0) walk.run({.result = 0, .most = of_loss});
  walk.drop(logits.result + of_loss);
  walk.run(ops.linear_grad_input(layer.rows, layer.config.hidden, experts.count, layer.element));
  walk.drop(dlogits.result + of_ranks);
}

PieceCost sparse_cost(const LayerCost& layer) {
  const device::OpsPlan& ops = layer.ops;
  const Size hidden = layer.config.hidden, width = layer.config.experts->width;
  const Size part_bytes = layer.linear.ranks().is_alone() ? layer.element : Size(kFloatBytes);
  const ExpertsLinearCost gate_up(layer, "experts_gate_up", hidden, 2 * width);
  const ExpertsLinearCost down(layer, "experts_down", width, hidden);
  PieceCost piece;
  // The middle, gate and up of all places, and their routing
  piece.graph = layer.size.stream + layer.size.gate_up + ops.route(layer.rows).result;
  piece.forward = [&layer, &ops, hidden, gate_up, down, part_bytes](Walk& walk, bool has_graph) {
    // A RoutingSink's numbers, a few a row, are gone before the result of down, which is larger, is there.
    const device::OpBytes logits = ops.linear(layer.rows, hidden, layer.config.experts->count, kFloatBytes);
    walk.run(layer.norm());
    walk.run(logits);
    walk.run(ops.route(layer.rows));
    walk.drop(logits.result);
    gate_up.forward(walk, layer.element, /*gathers=*/true);
    walk.run(ops.silu_mul(layer.rows * layer.config.experts->chosen));
    const Size result_of_down = down.forward(walk, part_bytes, /*gathers=*/false);
    walk.drop(layer.size.activated);
    walk_sum_of_places(walk, layer, result_of_down + (has_graph ? Size(0) : layer.size.gate_up));
    walk.drop(layer.size.hidden);  // the norm's result
  };
  piece.backward = [&layer, &ops, gate_up, down, part_bytes](Walk& walk) {
    if (layer.config.shard.cuts_rows()) walk.take(layer.size.hidden);  // the gradient of all rows, gathered
    walk.run(layer.norm());
    down.input_gradient(walk, layer.element, /*gathers=*/true);
    walk.run(ops.weighted_silu_backward(layer.rows));
    down.weight_gradient(walk, /*gathers_dy=*/true, /*gathers_x=*/false);
    gate_up.weight_gradient(walk, /*gathers_dy=*/false, /*gathers_x=*/true);
    walk_router_gradient(walk, layer);
    gate_up.input_gradient(walk, part_bytes, /*gathers=*/false);
    walk_sum_of_places(walk, layer, /*gone=*/0);
    walk.run(layer.norm_backward());
    walk.run(ops.add(stream_rows(layer.config, layer.rows)));
  };
  return piece;
}

PieceCost mlp_cost(const LayerCost& layer) {
  PieceCost piece;
  switch (layer.family.mlp) {
    case MlpKind::kGated: piece = gated_cost(layer); break;
    case MlpKind::kSparse: piece = sparse_cost(layer); break;
  }
  return piece;
}

// Returns how many weights of the MLP's matrices one token is multiplied with.
double mlp_weights(const ModelConfig& config, const Family& family) {
  const auto hidden = static_cast<double>(config.hidden);
  const double swiglu = 3 * hidden * static_cast<double>(config.mlp_width());
  double weights = 0;
  switch (family.mlp) {
    case MlpKind::kGated: weights = swiglu; break;
    case MlpKind::kSparse:
      weights = hidden * static_cast<double>(config.experts->count);
      weights += static_cast<double>(config.experts->chosen) * swiglu;
      break;
  }
  return weights;
}

// Counts a block with the dropout of its adapters, if they have it, also in `inference`.
BlockBytes walked_block_bytes(const ModelConfig& config, const Family& family, Dtype dtype, const device::OpsPlan& ops,
                              Size rows, const AttentionBytes& attention, Size routing_loss) {
  const LayerCost layer(config, family, dtype, ops, rows, routing_loss);
  const PieceCost attention_piece = attention_cost(layer, attention), mlp = mlp_cost(layer);
  const auto most_of_forward = [&](bool has_graph) {
    Walk walk;
    attention_piece.forward(walk, has_graph);
    mlp.forward(walk, has_graph);
    return walk.most();
  };
  const auto most_of_backward = [](const PieceCost& piece) {
    Walk walk;
    piece.backward(walk);
    return walk.most();
  };
  const Size inference = most_of_forward(/*has_graph=*/false);
  return {.graph = attention_piece.graph + mlp.graph,
          .mlp_graph = mlp.graph,
          .forward = attention.kept + most_of_forward(/*has_graph=*/true),
          .inference = inference,
          .mlp_backward = most_of_backward(mlp),
          .attention_backward = most_of_backward(attention_piece),
          .forward_again = inference};
}

}  // namespace

BlockBytes block_bytes(const ModelConfig& config, const Family& family, Dtype dtype, const device::OpsPlan& ops,
                       Size rows, const AttentionBytes& attention, Size routing_loss) {
  BlockBytes bytes = walked_block_bytes(config, family, dtype, ops, rows, attention, routing_loss);
  if (config.lora && config.lora->dropout > 0.0) {
    ModelConfig sampled = config;
    sampled.lora->dropout = 0.0;
    bytes.inference = walked_block_bytes(sampled, family, dtype, ops, rows, attention, routing_loss).inference;
  }
  return bytes;
}

double forward_flops(const ModelConfig& config, const Family& family, const ForwardWork& work) {
  const auto hidden = static_cast<double>(config.hidden), layers = static_cast<double>(config.num_layers);
  const auto heads = static_cast<double>(config.num_heads * config.head_dim);
  const auto kv_heads = static_cast<double>(config.num_kv_heads * config.head_dim);
  const double layer = hidden * (2 * heads + 2 * kv_heads) + mlp_weights(config, family);
  return 2 * work.rows * layer * layers +
         2 * work.logit_rows * hidden * static_cast<double>(vocab_rows(config).count()) +
         4 * work.key_pairs * heads * layers;
}

}  // namespace tandem::model::decoder
