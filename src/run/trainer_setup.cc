#include "run/trainer_setup.h"

#include "model/registry.h"
#include "trainer/schedule.h"
#include "trainer/trainer_plan.h"

namespace tandem::run {

trainer::TrainerConfig trainer_config(const config::OptimizerOptions& options, const rl::LossConfig& loss,
                                      int64_t num_layers, int64_t total_steps) {
  options.check();
  trainer::TrainerConfig config;
  config.max_tokens_per_gpu = options.max_tokens_per_gpu;
  config.logprob_chunk_rows = options.logprob_chunk_rows;
  config.recompute_layers = options.recompute_layers(num_layers);
  config.activation_bytes = options.activation_bytes;
  config.lr = options.lr;
  config.min_lr = options.min_lr;
  config.lr_decay_style = options.lr_decay_style;
  config.lr_warmup_steps = options.lr_warmup_iters;
  config.lr_decay_steps = options.lr_decay_iters > 0 ? options.lr_decay_iters : total_steps;
  config.weight_decay = options.weight_decay;
  config.weight_decay_all = options.weight_decay_all;
  config.adam_beta1 = options.adam_beta1;
  config.adam_beta2 = options.adam_beta2;
  config.adam_eps = options.adam_eps;
  config.clip_grad = options.clip_grad;
  config.max_grad_norm_skip = options.max_grad_norm_skip;
  config.skip_zero_gradient = options.skip_zero_gradient;
  config.loss = loss;
  // The trainer checks it too, but only once the weights are read.
  trainer::check_schedule({.decay_style = config.lr_decay_style,
                           .max_lr = config.lr,
                           .min_lr = config.min_lr,
                           .warmup_steps = config.lr_warmup_steps,
                           .decay_steps = config.lr_decay_steps});
  return config;
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
    bytes = trainer::optimizer_bytes(session.config(), session.config().dtype);
  } else {
    for (const auto& [name, tensor] : trainer.state()) {
      const bool is_master = name.starts_with("master.");
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
    const auto prompt = static_cast<double>(sample->prompt.size());
    const auto completion = static_cast<double>(sample->completion.size());
    const bool is_shared =
        previous != nullptr && previous->group_id == sample->group_id && previous->prompt == sample->prompt;
    const double already_run = is_shared ? prompt : 0.0;
    const double tokens = prompt + completion;
    work.rows += tokens - already_run;
    work.logit_rows += completion;
    work.key_pairs += (tokens * tokens - already_run * already_run) / 2;
    previous = sample;
  }
  return model::family_of(config).forward_flops(config, work);
}

}  // namespace tandem::run
