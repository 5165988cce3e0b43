// Limits of the work that the engine computes at once. No torch: options, plan and engine share it.
#pragma once

#include <cstdint>

namespace tandem::rollout {

struct BatchLimits {
  int64_t max_batch_tokens = 2048;  // tokens of one forward: decodes first, then prefill chunks; > 0
  int64_t max_running = 256;        // sequences that decode together, > 0
};

}  // namespace tandem::rollout
