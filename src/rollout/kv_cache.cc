#include "rollout/kv_cache.h"

#include <ATen/ops/empty.h>

#include "device/block.h"

namespace tandem::rollout {

KvCache::KvCache(const model::ModelConfig& config, int64_t num_blocks, const at::TensorOptions& options) {
  blocks_ = at::empty({num_blocks, config.num_layers, 2, config.num_kv_heads, config.head_dim * device::kBlockTokens},
                      options);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) layers_.push_back(blocks_.select(1, layer));
}

void KvCache::copy_blocks(const std::vector<BlockCopy>& copies) {
  for (const BlockCopy& copy : copies) blocks_.select(0, copy.to).copy_(blocks_.select(0, copy.from));
}

}  // namespace tandem::rollout
