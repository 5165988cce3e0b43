#include "rollout/kv_cache.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "device/block.h"

namespace tandem::rollout {

KvCache::KvCache(const model::ModelConfig& config, int64_t num_blocks, const at::TensorOptions& options,
                 std::byte* memory) {
  const std::vector<int64_t> shape = {num_blocks, config.num_layers, 2, config.num_kv_heads,
                                      config.head_dim * device::kBlockTokens};
  // The device is named: it cannot be found from an address that nothing is mapped to yet.
  blocks_ = memory == nullptr ? at::empty(shape, options)
                              : at::from_blob(
                                    memory, shape, [](void*) {}, options, options.device());
  for (int64_t layer = 0; layer < config.num_layers; ++layer) layers_.push_back(blocks_.select(1, layer));
}

void KvCache::copy_blocks(const std::vector<BlockCopy>& copies) {
  for (const BlockCopy& copy : copies) blocks_.select(0, copy.to).copy_(blocks_.select(0, copy.from));
}

}  // namespace tandem::rollout
