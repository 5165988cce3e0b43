// The engine's bytes, as arithmetic on a config: the KV cache, and the allocations of one step. No device, no torch.
#pragma once

#include <cstdint>

#include "base/size.h"
#include "device/footprint.h"
#include "memory/memory_plan.h"
#include "model/config.h"
#include "rollout/batch_limits.h"

namespace tandem::rollout {

using base::Size;

// Returns the bytes of a KV block (rollout/kv_layout.h).
Size kv_block_bytes(const model::ModelConfig& config);

// Returns the blocks of a cache of at most that many bytes. Throws UserError when not even one fits.
Size num_kv_blocks(const model::ModelConfig& config, Size kv_cache_bytes);

// Returns the tokens that so many blocks hold of sequences that have not given up any.
Size kv_tokens(const model::ModelConfig& config, Size num_blocks);

// Returns the rows of logits that the engine computes at once: 32 MiB of them, at least one.
Size logits_window_rows(Size vocab);

// The sizes of one step of the engine.
struct EngineShape {
  Size max_batch_tokens = 0;
  Size max_running = 0;
  Size recorded_rows = 0;              // BatchLimits::most_recorded_rows()
  Size largest_group = 1;              // samples of a prompt, at most
  Size context_tokens = 0;             // of a sequence, at most
  Size sharing_ranks = 1;              // ranks that share experts, this one among them
  Size shared_rows = 0;                // most_shared_rows(), if they do
  const device::Footprint& footprint;  // of the backend that computes
};

// Returns the most rows of one rank in a step that ranks make together (rollout/shared_steps.h), those that fill it up
// included.
Size most_shared_rows(const BatchLimits& limits);

// Adds the peaks of a step with as many rows as it may have. `standing` is the bytes that last through the phase, the
// cache among them. Where ranks share experts, what their exchange holds is added to it.
void add_engine_peaks(const model::ModelConfig& config, const EngineShape& shape, const memory::TagBytes& standing,
                      memory::MemoryPlan& plan);

}  // namespace tandem::rollout
