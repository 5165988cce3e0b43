#include "session/trainer_setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/message_text.h"
#include "model/lora.h"
#include "model/model_plan.h"
#include "trainer/trainer_plan.h"

namespace tandem::session {

trainer::TrainerConfig trainer_config(const config::OptimizerOptions& options, const rl::LossConfig& loss,
                                      int64_t num_layers, int64_t total_steps, uint64_t seed) {
  return {.adamw = options.adamw,
          .schedule = options.run_schedule(total_steps),
          .gradient = options.gradient,
          .batch = options.batch,
          .loss = loss,
          .router = options.router,
          .seed = seed,
          .recompute_layers = options.recompute_layers(num_layers)};
}

trainer::TrainerConfig trainer_config(const config::TrainConfig& config, int64_t num_layers, int64_t total_steps) {
  trainer::TrainerConfig result = trainer_config(config.optimizer, config.loss_config(), num_layers, total_steps,
                                                 static_cast<uint64_t>(config.model.seed));
  result.temperature = config.rollout.temperature;
  return result;
}

report::Metrics recorded(const trainer::Metrics& of_step) {
  report::Metrics metrics;
  for (const auto& [name, value] : of_step) {
    const bool has_place = name.find('/') != std::string::npos;
    metrics[has_place ? name : "train/" + (name == "lr" ? "lr-pg_0" : name)] = value;
  }
  return metrics;
}

std::string lora_text(const model::ModelConfig& config) {
  return fmt::format("LoRA: {} trained parameters: rank {}, alpha {:g}{}{} on {}",
                     base::with_commas(model::adapter_layout(config).num_elements()), config.lora->rank,
                     config.lora->alpha, config.lora->is_rank_stabilized ? " over the rank's root" : "",
                     config.lora->dropout > 0.0 ? fmt::format(", dropout {:g}", config.lora->dropout) : "",
                     fmt::join(config.lora->target_modules, ", ")) +
         (config.lora->saved_modules.empty() ? ""
                                             : fmt::format("; {} whole", fmt::join(config.lora->saved_modules, ", ")));
}

std::map<std::string, std::string> adapter_inputs(const model::ModelConfig& config) {
  if (!config.lora) return {};
  const model::LoraConfig& lora = *config.lora;
  return {{"scale", fmt::format("{} over {}{}", lora.alpha, lora.is_rank_stabilized ? "the root of " : "", lora.rank)},
          {"dropout", fmt::format("{}", lora.dropout)}};
}

void account_optimizer(const ModelSession& session, const trainer::Trainer& trainer, bool is_offloaded,
                       int64_t data_ranks, RunMemory& memory) {
  trainer::OptimizerBytes bytes;
  if (is_offloaded) {
    if (!session.ops().is_on_host()) return;
    bytes = trainer::optimizer_bytes(model::trained_layout(session.config()), session.config().dtype, data_ranks);
  } else {
    for (const auto& [kind, packed, tensor, row_begin] : trainer.state()) {
      const bool is_master = kind == trainer::StateKind::kMaster;
      if (is_master && session.dtype() == at::kFloat) continue;  // the store's own tensor
      (is_master ? bytes.master : bytes.moments) += static_cast<int64_t>(tensor.nbytes());
    }
  }
  memory.add_persistent(memory::Tag::kMaster, bytes.master);
  memory.add_persistent(memory::Tag::kMoments, bytes.moments);
}

namespace {

model::ForwardWork work_of(const std::vector<const rl::Sample*>& samples) {
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
  return work;
}

}  // namespace

double forward_flops(const model::ModelConfig& config, const std::vector<const rl::Sample*>& samples) {
  return model::forward_flops(config, work_of(samples));
}

double training_flops(const model::ModelConfig& config, const std::vector<const rl::Sample*>& samples) {
  const double forward = forward_flops(config, samples);
  if (!config.lora) return 3.0 * forward;
  model::ForwardWork work = work_of(samples);
  work.key_pairs = 0;  // only the products with weights remain
  if (config.lora->saves(config.tied_embeddings ? "embed_tokens" : "lm_head")) work.logit_rows = 0;
  return 3.0 * forward - model::forward_flops(config, work);
}

}  // namespace tandem::session
