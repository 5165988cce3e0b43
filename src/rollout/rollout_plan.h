// The bytes of the KV cache, as arithmetic on a config: no device, no torch.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace tandem::rollout {

// K and V of all layers for device::kBlockTokens tokens.
int64_t kv_block_bytes(const model::ModelConfig& config, int64_t element_bytes);

// Blocks of a cache of at most that many bytes. UserError when not even one fits.
int64_t num_kv_blocks(const model::ModelConfig& config, int64_t element_bytes, int64_t kv_cache_bytes);

}  // namespace tandem::rollout
