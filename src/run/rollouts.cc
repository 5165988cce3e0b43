#include "run/rollouts.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "report/sample_file.h"
#include "run/rollout_file.h"
#include "run/rollout_metrics.h"

namespace tandem::run {

namespace {

std::unique_ptr<rollout::Engine> make_engine(TrainInputs& inputs, const RunMemory& memory, model::Model& model) {
  rollout::EngineConfig config = inputs.session.engine_config(inputs.config.rollout, inputs.plan.num_kv_blocks);
  config.kv_memory = memory.kv();
  return rollout::make_engine(config, model);
}

}  // namespace

Rollouts::Rollouts(TrainInputs& inputs, RunMemory& memory)
    : inputs_(inputs),
      model_(inputs.session.make_model()),
      engine_(make_engine(inputs, memory, *model_)),
      order_(static_cast<int64_t>(inputs.prompts.prompts.size()), inputs.config.rollout_shuffle,
             static_cast<uint64_t>(inputs.config.rollout.rollout_seed)),
      phase_(*engine_, inputs.session.text()) {}

std::optional<Rollout> Rollouts::next(int64_t rollout_id, text::Graders& graders, report::Report& report) {
  const std::string title = fmt::format("rollout {}/{}", rollout_id + 1, inputs_.num_rollouts);
  std::optional<Rollout> rollout;
  if (const std::string& pattern = inputs_.config.load_debug_rollout_data; !pattern.empty()) {
    rollout = read_rollout(report::rollout_path("--load-debug-rollout-data", pattern, rollout_id),
                           {.num_samples = inputs_.config.samples_per_rollout(),
                            .vocab = inputs_.session.config().vocab,
                            .context_tokens = inputs_.plan.context_tokens});
  } else {
    RolloutRequest request = this->request(rollout_id);
    request.title = title;
    rollout = phase_.run(request, &graders, report);
  }
  if (rollout) warn_of_failures(*rollout, title);
  return rollout;
}

RolloutRequest Rollouts::request(int64_t rollout_id) {
  const config::TrainConfig& config = inputs_.config;
  RolloutRequest request;
  for (int64_t i = 0; i < config.rollout_batch_size; ++i) {
    request.prompts.push_back(&inputs_.prompts.prompts[static_cast<size_t>(order_.next())]);
  }
  request.n_samples_per_prompt = config.rollout.n_samples_per_prompt;
  request.sampling = config.rollout.sampling();
  request.first_sample_id = static_cast<uint64_t>(rollout_id * config.samples_per_rollout());
  request.skip_special_tokens = config.rollout.skip_special_tokens;
  request.failure_reward = config.reward.failure();
  return request;
}

void Rollouts::update_weights() { engine_->update_weights(inputs_.session.store().view()); }

void Rollouts::restore(const rl::PromptCursor& cursor) {
  update_weights();
  order_.set_cursor(cursor);
}

}  // namespace tandem::run
