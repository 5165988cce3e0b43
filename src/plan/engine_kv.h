// The KV cache of a command that samples and does not train: `tandem generate`, `eval` and `engine`.
#pragma once

#include <cstdint>
#include <optional>

#include "config/model_options.h"
#include "config/rollout_options.h"
#include "device/vmm.h"
#include "model/config.h"

namespace tandem::plan {

struct EngineNeeds {
  int64_t sequences = 0;       // that may decode together
  int64_t context_tokens = 0;  // of the longest one
  int64_t other_bytes = 0;     // of the device, for other models than the one that samples
};

// Returns the bytes of the KV cache: what --kv-cache-bytes says, or else what the sequences need, within what the
// device has left. `measured` is the device's own answer before the weights are loaded; nullopt stands for the host,
// where the cache stays within kMaxAutomaticKvBytes. One sequence gets its bytes in any case. Throws UserError as
// choose_kv_bytes() does.
int64_t engine_kv_bytes(const config::ModelOptions& options, const config::RolloutOptions& rollout,
                        const model::ModelConfig& model, const EngineNeeds& needs,
                        std::optional<device::DeviceBytes> measured);

}  // namespace tandem::plan
