// The engine's bytes, as arithmetic on a config: the KV cache, and what one step allocates. No device, no torch.
#pragma once

#include <cstdint>

#include "device/ops_plan.h"
#include "memory/memory_plan.h"
#include "model/config.h"

namespace tandem::rollout {

// K and V of all layers for device::kBlockTokens tokens.
int64_t kv_block_bytes(const model::ModelConfig& config, int64_t element_bytes);

// Blocks of a cache of at most that many bytes. UserError when not even one fits.
int64_t num_kv_blocks(const model::ModelConfig& config, int64_t element_bytes, int64_t kv_cache_bytes);

// Rows of logits that the engine computes at once: 32 MiB of them, at least one.
int64_t logits_window_rows(int64_t vocab);

// One step of the engine.
struct EngineShape {
  int64_t max_batch_tokens = 0;
  int64_t max_running = 0;
  int64_t context_tokens = 0;  // of a sequence, at most
  device::OpsFamily family = device::OpsFamily::kCpu;
};

// Adds the moments of a step with as many rows as it may have: `standing` is what lasts through the phase, the cache
// among it.
void add_engine_moments(const model::ModelConfig& config, model::Dtype dtype, const EngineShape& shape,
                        const memory::TagBytes& standing, memory::MemoryPlan& plan);

}  // namespace tandem::rollout
