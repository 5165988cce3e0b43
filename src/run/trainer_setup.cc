#include "run/trainer_setup.h"

#include "model/registry.h"
#include "trainer/trainer_plan.h"

namespace tandem::run {

trainer::TrainerConfig trainer_config(const config::OptimizerOptions& options, const rl::LossConfig& loss,
                                      int64_t num_layers, int64_t total_steps) {
  return {.adamw = options.adamw,
          .schedule = options.run_schedule(total_steps),
          .gradient = options.gradient,
          .batch = options.batch,
          .loss = loss,
          .recompute_layers = options.recompute_layers(num_layers)};
}

trainer::TrainerConfig trainer_config(const config::TrainConfig& config, int64_t num_layers, int64_t num_rollouts) {
  trainer::TrainerConfig result =
      trainer_config(config.optimizer, config.loss_config(), num_layers, num_rollouts * config.steps_per_rollout());
  result.temperature = config.rollout.temperature;
  return result;
}

void account_optimizer(const ModelSession& session, const trainer::Trainer& trainer, bool is_offloaded,
                       RunMemory& memory) {
  trainer::OptimizerBytes bytes;
  if (is_offloaded) {
    if (!session.ops().device().is_cpu()) return;
    bytes = trainer::optimizer_bytes(session.config());
  } else {
    for (const auto& [kind, packed, tensor] : trainer.state()) {
      const bool is_master = kind == trainer::StateKind::kMaster;
      if (is_master && session.dtype() == at::kFloat) continue;  // the store's own
      (is_master ? bytes.master : bytes.moments) += static_cast<int64_t>(tensor.nbytes());
    }
  }
  memory.add_persistent(memory::Tag::kMaster, bytes.master);
  memory.add_persistent(memory::Tag::kMoments, bytes.moments);
}

double forward_flops(const model::ModelConfig& config, const std::vector<const rl::Sample*>& samples) {
  model::ForwardWork work;
  const rl::Sample* previous = nullptr;
  for (const rl::Sample* sample : samples) {
    const auto completion = static_cast<double>(sample->completion.size());
    const bool is_shared = previous != nullptr && rl::share_prompt(*previous, *sample);
    const double already_run = is_shared ? static_cast<double>(sample->prompt->tokens.size()) : 0.0;
    const auto tokens = static_cast<double>(sample->num_tokens());
    work.rows += tokens - already_run;
    work.logit_rows += completion;
    work.key_pairs += (tokens * tokens - already_run * already_run) / 2;
    previous = sample;
  }
  return model::family_of(config).forward_flops(config, work);
}

}  // namespace tandem::run
