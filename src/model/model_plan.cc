#include "model/model_plan.h"

#include "device/block.h"
#include "model/registry.h"

namespace tandem::model {

device::OpsPlan ops_plan(device::OpsFamily family, const ModelConfig& config, Dtype dtype) {
  return {family, ops_shape(config), dtype_bytes(dtype)};
}

BlockBytes block_bytes(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows,
                       const AttentionBytes& attention) {
  return family_of(config).block_bytes(config, dtype, ops, rows, attention);
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
