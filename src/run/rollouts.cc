#include "run/rollouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/size.h"
#include "report/sample_file.h"
#include "run/rollout_file.h"
#include "run/rollout_metrics.h"

namespace tandem::run {

namespace {

std::unique_ptr<rollout::Engine> make_engine(TrainInputs& inputs, const RunMemory& memory, model::Model& model) {
  rollout::EngineConfig config = inputs.session.engine_config(inputs.config.rollout, inputs.plan.num_kv_blocks);
  config.kv_memory = memory.kv();
  // Any call of a function may have stop texts.
  if (inputs.config.custom_generate.is_on()) config.token_bytes = inputs.session.text().token_bytes();
  return rollout::make_engine(config, model);
}

}  // namespace

Rollouts::Rollouts(TrainInputs& inputs, RunMemory& memory, mesh::Mesh& mesh)
    : inputs_(inputs),
      model_(inputs.session.make_model()),
      engine_(make_engine(inputs, memory, *model_)),
      order_(static_cast<int64_t>(inputs.prompts.prompts.size()), inputs.config.rollout_shuffle,
             static_cast<uint64_t>(inputs.config.rollout.rollout_seed)),
      phase_(*engine_, inputs.session.text(), mesh) {}

std::optional<Rollout> Rollouts::next(int64_t rollout_id, Rewards& rewards, report::Report& report) {
  const std::string title = fmt::format("rollout {}/{}", rollout_id + 1, inputs_.num_rollouts);
  std::optional<Rollout> rollout;
  if (const std::string& pattern = inputs_.config.load_debug_rollout_data; !pattern.empty()) {
    rollout = read_rollout(report::rollout_path("--load-debug-rollout-data", pattern, rollout_id),
                           {.num_samples = inputs_.config.samples_per_rollout(),
                            .vocab = inputs_.session.config().vocab,
                            .context_tokens = inputs_.plan.context_tokens});
  } else {
    RolloutRequest request = this->request(rewards);
    request.title = title;
    rollout = phase_.run(request, &rewards.of_training(), report);
    if (rollout && rollout->filtered)
      order_.set_cursor(cursors_.at(static_cast<size_t>(rollout->filtered->num_groups - 1)));
  }
  if (rollout && phase_.speaks()) {
    warn_of_failures(*rollout, title);
    warn_of_filter(*rollout, title);
  }
  return rollout;
}

const PromptLine* Rollouts::next_prompt() {
  const auto index = static_cast<size_t>(order_.next());
  cursors_.push_back(order_.cursor());
  return &inputs_.prompts.prompts[index];
}

// A group has the number of its prompt in the whole run, so its samples have ids of their own, and the same ones
// whenever it is sampled.
RolloutRequest Rollouts::request(Rewards& rewards) {
  const config::TrainConfig& config = inputs_.config;
  RolloutRequest request;
  request.n_samples_per_prompt = config.rollout.n_samples_per_prompt;
  const int64_t first_sample = base::Size(order_.num_taken()) * request.n_samples_per_prompt;
  TANDEM_USER_CHECK(first_sample < config::kMaxSamples,
                    fmt::format("a run has at most {} samples, and {} are sampled: begin a new one",
                                config::kMaxSamples, first_sample));
  request.first_sample_id = static_cast<uint64_t>(first_sample);
  request.sampling = config.rollout.sampling();
  request.skip_special_tokens = config.rollout.skip_special_tokens;
  request.failure_reward = config.reward.failure();
  if (text::Generators* const processes = rewards.generators()) {
    request.generation.emplace(CustomGeneration{.processes = *processes,
                                                .function = config.custom_generate.function,
                                                .metadata_key = config.data.lines.metadata_key,
                                                .context_tokens = inputs_.session.config().max_positions,
                                                .is_evaluation = false});
  }
  if (GroupFilter* const filter = rewards.filter()) {
    constexpr int64_t kMinBatches = 10;  // whose groups may all be dropped by chance, where the data are few
    cursors_.clear();
    request.dynamic.emplace(DynamicSampling{
        .filter = *filter,
        .filter_name = config.dynamic_sampling.filter_path,
        .next_prompt = [this] { return next_prompt(); },
        .num_groups = config.rollout_batch_size,
        .groups_at_once = config.dynamic_sampling.groups_at_once(config.rollout_batch_size),
        .max_dropped =
            std::max(kMinBatches * config.rollout_batch_size, static_cast<int64_t>(inputs_.prompts.prompts.size()))});
  } else {
    for (int64_t i = 0; i < config.rollout_batch_size; ++i) {
      request.prompts.push_back(&inputs_.prompts.prompts[static_cast<size_t>(order_.next())]);
    }
  }
  return request;
}

void Rollouts::update_weights() { engine_->update_weights(inputs_.session.view()); }

void Rollouts::restore(const rl::PromptCursor& cursor) {
  update_weights();
  order_.set_cursor(cursor);
}

}  // namespace tandem::run
