#include "model/model_plan.h"

#include <algorithm>

#include "device/block.h"

namespace tandem::model {

constexpr int64_t kFloatBytes = 4;

BlockRowBytes block_row_bytes(const ModelConfig& config, Dtype dtype) {
  const int64_t E = config.hidden, F = config.mlp;
  const int64_t q = config.num_heads * config.head_dim, kv = config.num_kv_heads * config.head_dim, qkv = q + 2 * kv;
  const int64_t bytes = dtype_bytes(dtype);
  // The attention's backward sums keys' and values' gradients in float32; only bfloat16 then needs a copy.
  const int64_t kv_sums = 2 * kv * kFloatBytes + (dtype == Dtype::kFloat32 ? 0 : 2 * kv * bytes);
  BlockRowBytes row;
  row.hidden = E * bytes;
  // qkv; q after norm and rotation; attention's result; the block's middle; gate_up; attention's logsumexp.
  row.graph = (qkv + q + q + E + 2 * F) * bytes + config.num_heads * kFloatBytes;
  // Keys and values, which forward() holds to its end; then the normalised middle, or silu_mul's result, down's and
  // the sum.
  row.forward = (2 * kv + std::max(E, F + 2 * E)) * bytes;
  // The output's gradient; silu_mul's result and its gradient, then that of gate_up; normalised middle and its
  // gradient, or that, the norm's and the sum.
  row.mlp_backward = (E + 3 * F + 3 * E) * bytes;
  // The caller's gradient and the residual's; dout, dq; without middle and gate_up.
  row.attention_backward = (E + E + q + q - E - 2 * F) * bytes + kv_sums;
  // At the MLP: q, k, v, attention's result, middle, gate_up, silu_mul's result, down's, the sum. At the projection:
  // qkv and what it is split into, or what it was made from.
  row.inference = std::max(q + 2 * kv + q + E + 2 * F + F + 2 * E, qkv + std::max(qkv, E)) * bytes;
  return row;
}

int64_t layer_kv_block_bytes(const ModelConfig& config, int64_t element_bytes) {
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
