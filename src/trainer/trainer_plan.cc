#include "trainer/trainer_plan.h"

#include <algorithm>

namespace tandem::trainer {

constexpr int64_t kFloatBytes = 4;

OptimizerBytes optimizer_bytes(const model::ModelConfig& config, model::Dtype store_dtype) {
  const int64_t one = config.num_parameters() * kFloatBytes;
  return {.master = store_dtype == model::Dtype::kFloat32 ? 0 : one, .moments = 2 * one, .gradient = one};
}

TokenBytes token_bytes(const model::ModelConfig& c, model::Dtype dtype) {
  const int64_t heads = c.num_heads * c.head_dim, kv_heads = c.num_kv_heads * c.head_dim;
  // qkv before and q after norm and RoPE, the scratch cache, attention's result, the block's middle, gate_up
  // (model/qwen3.cc says why no more).
  const int64_t elements = (heads + 2 * kv_heads) + heads + 2 * kv_heads + heads + c.hidden + 2 * c.mlp;
  const int64_t logsumexp = c.num_heads * kFloatBytes;
  const int64_t hidden = c.hidden * model::dtype_bytes(dtype);
  return {.block_input = hidden,
          .block_graph = elements * model::dtype_bytes(dtype) + logsumexp,
          .head = 2 * hidden + c.hidden * kFloatBytes};
}

int64_t logits_bytes(const model::ModelConfig& config, int64_t chunk_rows) {
  return config.vocab * chunk_rows * kFloatBytes;
}

int64_t activation_bytes(const model::ModelConfig& config, model::Dtype dtype, int64_t num_tokens,
                         int64_t recomputed_layers) {
  const TokenBytes token = token_bytes(config, dtype);
  const int64_t kept_layers = config.num_layers - recomputed_layers;
  // While a dropped block is re-run all kept graphs are gone, so its own counts only where no block is kept.
  const int64_t graphs = std::max<int64_t>(kept_layers, 1);
  return num_tokens * (config.num_layers * token.block_input + graphs * token.block_graph + token.head);
}

int64_t recomputed_layers_for(const model::ModelConfig& config, model::Dtype dtype, int64_t num_tokens,
                              int64_t budget_bytes) {
  if (budget_bytes == 0) return 0;
  int64_t recomputed = 0;
  while (recomputed < config.num_layers && activation_bytes(config, dtype, num_tokens, recomputed) > budget_bytes) {
    ++recomputed;
  }
  return recomputed;
}

}  // namespace tandem::trainer
