#include "plan/engine_kv.h"

#include <algorithm>

#include "plan/kv_size.h"
#include "plan/plan.h"

namespace tandem::plan {

int64_t engine_kv_bytes(const config::ModelOptions& options, const config::RolloutOptions& rollout,
                        const model::ModelConfig& model, const EngineNeeds& needs,
                        std::optional<device::DeviceBytes> measured) {
  if (!measured || rollout.kv_cache_bytes > 0)
    return choose_kv_bytes(rollout, model, needs.sequences, needs.context_tokens);
  // It is planned as a process of a run that only samples: a rollout of one prompt and one token, and an
  // evaluation of the sequences.
  config::TrainConfig config;
  config.model = options;
  config.rollout = rollout;
  config.rollout_batch_size = 1;
  config.rollout.max_response_len = 1;
  const PlanInputs facts = {.longest_prompt = 1,
                            .eval_context_tokens = needs.context_tokens,
                            .eval_sequences = needs.sequences,
                            .role = Role::kRollout};
  DeviceMemory device = device_memory(config, measured);
  device.bytes = std::max<int64_t>(device.bytes - needs.other_bytes, 1);
  return plan_training(config, model, facts, device).kv_cache_bytes;
}

}  // namespace tandem::plan
