#include "rollout/kv_cache.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "device/block.h"

namespace tandem::rollout {

KvCache::KvCache(const model::ModelConfig& config, int64_t num_blocks, const at::TensorOptions& options,
                 std::byte* memory)
    : layout_(kv_layout(config)) {
  const std::vector<int64_t> shape = {num_blocks, layout_.block_size};
  // The device is named: it cannot be found from an address that nothing is mapped to yet.
  blocks_ = memory == nullptr ? at::empty(shape, options)
                              : at::from_blob(
                                    memory, shape, [](void*) {}, options, options.device());
  const int64_t G = config.num_kv_heads, KT = config.head_dim * device::kBlockTokens;
  for (const KvLayout::LayerPlace& place : layout_.layers) {
    layers_.push_back(blocks_.as_strided({num_blocks * layout_.tiles(place.kind), 2, G, KT},
                                         {layout_.tile_sizes[place.kind], G * KT, KT, 1}, place.index * 2 * G * KT));
  }
}

void KvCache::copy_blocks(const std::vector<BlockCopy>& copies) {
  for (const BlockCopy& copy : copies) blocks_.select(0, copy.to).copy_(blocks_.select(0, copy.from));
}

}  // namespace tandem::rollout
