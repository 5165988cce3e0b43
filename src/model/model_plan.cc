#include "model/model_plan.h"

#include <algorithm>

#include "base/size.h"
#include "device/block.h"
#include "model/decoder/cost.h"
#include "model/registry.h"
#include "model/tensor_ranks_plan.h"

namespace tandem::model {

using base::kFloatBytes;

std::unique_ptr<const device::OpsPlan> ops_plan(const device::Footprint& footprint, const ModelConfig& config,
                                                Dtype dtype) {
  return footprint.plan_ops(ops_shape(config), dtype_bytes(dtype));
}

BlockBytes block_bytes(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows,
                       const AttentionBytes& attention, Size routing_loss) {
  return decoder::block_bytes(config, family_of(config), dtype, ops, rows, attention, routing_loss);
}

double forward_flops(const ModelConfig& config, const ForwardWork& work) {
  return decoder::forward_flops(config, family_of(config), work);
}

namespace {

// Every rank plans for the largest part of the vocabulary, so all state the same bytes.
Size most_vocab_rows(const ModelConfig& config) { return std::ranges::max(vocab_row_counts(config)); }
Size least_vocab_rows(const ModelConfig& config) { return std::ranges::min(vocab_row_counts(config)); }

}  // namespace

device::OpBytes head_bytes(const ModelConfig& config, const device::OpsPlan& ops, Size rows) {
  return ops.linear(rows, config.hidden, most_vocab_rows(config), kFloatBytes);
}

device::OpBytes own_logits_bytes(const ModelConfig& config, const device::OpsPlan& ops, Size rows) {
  return TensorRanksPlan(ops, config.shard.size).whole_own_rows(rows, least_vocab_rows(config), config.vocab);
}

Size scoring_bytes(const ModelConfig& config, const device::OpsPlan& ops, Size rows) {
  const device::OpBytes own = own_logits_bytes(config, ops, rows);
  const Size own_rows = TensorRanksPlan(ops, config.shard.size).most_own_rows(rows);
  return std::max(own.most, own.result + ops.logprob(own_rows).most);
}

Size scoring_backward_bytes(const ModelConfig& config, const device::OpsPlan& ops, Size rows,
                            bool has_entropy_gradient) {
  return ops.logprob_backward(rows, most_vocab_rows(config), has_entropy_gradient).most;
}

device::OpBytes head_backward_bytes(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows) {
  const Size element = dtype_bytes(dtype), own_vocab = most_vocab_rows(config);
  const bool is_float32 = ops.logits_gradient_bytes() == kFloatBytes;
  const TensorRanksPlan ranks(ops, config.shard.size);
  if (ranks.is_alone()) return ops.linear_grad_input(rows, config.hidden, config.vocab, element, is_float32);
  const device::OpBytes part = ops.linear_grad_input(rows, config.hidden, own_vocab, kFloatBytes, is_float32);
  const device::OpBytes sum = ranks.sum(rows, config.hidden, kFloatBytes, element);
  return {.result = sum.result, .most = std::max(part.most, part.result + sum.most)};
}

Size hidden_bytes(const ModelConfig& config, Dtype dtype, Size rows) {
  return rows * config.hidden * dtype_bytes(dtype);
}

Size stream_rows(const ModelConfig& config, Size rows) {
  return config.shard.cuts_rows() ? (rows + config.shard.size - 1) / config.shard.size : rows;
}

Size stream_bytes(const ModelConfig& config, Dtype dtype, Size rows) {
  return hidden_bytes(config, dtype, stream_rows(config, rows));
}

device::OpBytes norm_bytes(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows) {
  const device::OpBytes own = ops.rms_norm(stream_rows(config, rows));
  if (!config.shard.cuts_rows()) return own;
  const Size whole = hidden_bytes(config, dtype, rows);
  return {.result = whole, .most = std::max(own.most, own.result + whole)};
}

device::OpBytes norm_backward_bytes(const ModelConfig& config, const device::OpsPlan& ops, Size rows) {
  const device::OpBytes own = ops.rms_norm_backward(stream_rows(config, rows));
  if (!config.shard.cuts_rows()) return own;
  // The weight's gradient for the own rows lives until those for all rows are added up.
  const Size gradient = config.hidden * kFloatBytes;
  const device::OpBytes sum = TensorRanksPlan(ops, config.shard.size).sum(1, config.hidden, kFloatBytes, kFloatBytes);
  return {.result = own.result, .most = gradient + std::max(own.most, own.result + sum.most)};
}

Size layer_kv_block_bytes(const ModelConfig& config, Size element_bytes) {
  return 2 * config.num_kv_heads * config.head_dim * device::kBlockTokens * element_bytes;
}

device::OpsShape ops_shape(const ModelConfig& config) {
  device::OpsShape shape;
  shape.hidden = config.hidden;
  shape.q_width = config.num_heads * config.head_dim;
  shape.kv_width = config.num_kv_heads * config.head_dim;
  shape.mlp = config.mlp_width();
  if (config.experts) {
    shape.experts = config.experts->count;
    shape.chosen = config.experts->chosen;
  }
  shape.vocab = config.vocab;
  shape.num_heads = config.num_heads;
  shape.num_kv_heads = config.num_kv_heads;
  shape.head_dim = config.head_dim;
  shape.norms_have_offset = family_of(config).norm_offset != 0.0;
  shape.is_quantised = config.is_quantised();
  return shape;
}

}  // namespace tandem::model
