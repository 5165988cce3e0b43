#include "rollout/rollout_plan.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "device/block.h"

namespace tandem::rollout {

int64_t kv_block_bytes(const model::ModelConfig& config, int64_t element_bytes) {
  return config.num_layers * 2 * config.num_kv_heads * config.head_dim * device::kBlockTokens * element_bytes;
}

int64_t num_kv_blocks(const model::ModelConfig& config, int64_t element_bytes, int64_t kv_cache_bytes) {
  const int64_t block_bytes = kv_block_bytes(config, element_bytes);
  TANDEM_USER_CHECK(kv_cache_bytes >= block_bytes, "--kv-cache-bytes is", kv_cache_bytes, "but one block of",
                    device::kBlockTokens, "tokens of this model takes", block_bytes, "bytes: raise it");
  // Slots are 32-bit numbers. More blocks than that can be named are no use.
  return std::min<int64_t>(kv_cache_bytes / block_bytes, std::numeric_limits<int32_t>::max() / device::kBlockTokens);
}

}  // namespace tandem::rollout
