// What Qwen3's block takes, as qwen3/forward.cc runs it.
#include "model/decoder/cost.h"

#include "model/qwen3/qwen3.h"

namespace tandem::model::qwen3 {

constexpr int64_t kFloatBytes = 4;

BlockBytes block_bytes(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows,
                       const AttentionBytes& attention) {
  const decoder::Sizes size(config, dtype, rows);
  const Size qkv_width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim;
  const decoder::AdapterCost adapters(config, dtype, ops, rows);
  const decoder::LinearCost linear(config, dtype, ops, rows);
  decoder::ProjectionCost projection;
  projection.kept = size.qkv;
  projection.forward = [&](decoder::Walk& walk, bool has_graph) {
    walk.run(norm_bytes(config, dtype, ops, rows));
    walk.run(ops.linear(rows, config.hidden, qkv_width, dtype_bytes(dtype)));
    adapters.forward(walk, "qkv");
    walk.drop(size.hidden);  // the norm's result
    walk.run(ops.qk_norm_rope(rows));
    if (!has_graph) walk.drop(size.qkv);
  };
  projection.backward = [&](decoder::Walk& walk) {
    walk.run(ops.qk_norm_rope_backward(rows));
    // The norms' gradients of the own heads, until those of all are added up.
    if (!linear.ranks().is_alone()) {
      walk.take(2 * config.head_dim * kFloatBytes);
      walk.run(linear.ranks().sum(2, config.head_dim, kFloatBytes, kFloatBytes));
      walk.drop(2 * 2 * config.head_dim * kFloatBytes);
    }
    walk.run(norm_bytes(config, dtype, ops, rows));
    linear.hidden_gradient(walk, qkv_width);
    adapters.backward(walk, "qkv");
    walk.drop(size.hidden);  // the norm's result
    walk.run(norm_backward_bytes(config, ops, rows));
  };
  return decoder::block_bytes(config, dtype, ops, rows, attention, projection);
}

}  // namespace tandem::model::qwen3
