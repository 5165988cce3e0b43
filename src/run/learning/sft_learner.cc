#include "run/learning/sft_learner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/clock.h"
#include "base/log.h"
#include "base/message_text.h"
#include "model/registry.h"
#include "run/health_settings.h"
#include "run/learning/reference.h"
#include "run/patience.h"
#include "run/training_traffic.h"
#include "session/ranks.h"
#include "session/read_reference.h"
#include "session/stop_signal.h"
#include "session/trainer_setup.h"
#include "tandem/error.h"
#include "weights/not_finite.h"

namespace tandem::run {

namespace {

std::vector<int64_t> items_of_files(const SftInputs& inputs) {
  std::vector<int64_t> sizes = inputs.data.file_sizes;
  for (int64_t& size : sizes) size /= inputs.config.preference.answers_of_item();
  return sizes;
}

model::ModelConfig model_in_training(const SftInputs& inputs) {
  model::ModelConfig model = inputs.session.config();
  model.shard.sequence_parallel = inputs.config.mesh.sequence_parallel;
  return model;
}

}  // namespace

SftLearner::SftLearner(SftInputs& inputs)
    : inputs_(inputs),
      ranks_(session::training_ranks(*inputs.mesh)),
      order_(items_of_files(inputs), inputs.config.data.prompt_data_weights, inputs.config.rollout_shuffle,
             static_cast<uint64_t>(inputs.config.rollout_seed)),
      health_(signal_settings(inputs.config.optimizer, inputs.num_steps)),
      model_(inputs.session.make_model(model_in_training(inputs), inputs.session.view())) {
  trainer::TrainerConfig config = inputs.trainer;
  config.abandon = [grace = inputs.config.checkpoints.stop_grace_seconds] {
    return session::seconds_since_stop() > grace;
  };
  trainer_ = trainer::make_trainer(config, inputs.session.trained(), *model_, /*offload=*/std::nullopt, ranks_);
  if (!inputs.config.preference.is_on()) return;
  if (inputs.config.ref_load.empty()) {
    score_reference(inputs, *model_, [&] { return inputs.session.why_not_finite(); });
    return;
  }
  // The other weights are in memory while they score, and no longer.
  const model::ModelConfig reference = session::read_reference(inputs.config.ref_load, model_in_training(inputs));
  auto store = weights::WeightStore::without_storage(model::build_layout(reference), inputs.session.dtype(),
                                                     inputs.session.ops().device());
  weights::load_hf_checkpoint(inputs.config.ref_load, store);
  score_reference(inputs, *inputs.session.make_model(reference, store.view()),
                  [&] { return weights::why_not_finite(store); });
}

std::vector<int64_t> SftLearner::next_items(data::PromptOrder& order) const {
  std::vector<int64_t> items;
  for (int64_t i = 0; i < inputs_.config.global_batch_size; ++i) items.push_back(order.next());
  return items;
}

void SftLearner::score_reference(SftInputs& inputs, const model::Model& reference,
                                 const std::function<std::string()>& why_not_finite) {
  preferences_.emplace(inputs.config.preference, inputs.data, inputs.trainer.batch, ranks_);
  const auto refuse = [&] { refuse_reference(inputs.session, inputs.config.ref_load, why_not_finite()); };
  data::PromptOrder order = order_;
  int64_t begin = 0;
  if (inputs.checkpoint) {
    order.set_cursor(checkpoint::read_state(*inputs.checkpoint).cursor);
    begin = inputs.checkpoint->step();
  }
  report::Report report({.is_silent = !inputs.mesh->is_conductor()});
  for (int64_t step = begin; step < inputs.num_steps; ++step) {
    report.progress("scoring the reference", step - begin, inputs.num_steps - begin, "steps");
    if (!preferences_->score_reference(reference, next_items(order))) refuse();
  }
  if (!inputs.held_out.score_reference(reference, inputs.trainer.batch)) refuse();
}

void SftLearner::restore(const checkpoint::RunState& saved) {
  order_.set_cursor(saved.cursor);
  skipped_in_a_row_ = saved.skipped_in_a_row;
}

std::optional<report::Metrics> SftLearner::step(int64_t step, RunLog& log) {
  const base::Clock::time_point begin = base::Clock::now();
  const TrainingTraffic traffic(*inputs_.mesh);
  const std::vector<int64_t> items = next_items(order_);
  Preferences::Step judged;
  std::vector<const rl::Sample*> batch;
  if (preferences_) {
    judged = preferences_->step(*model_, items);
    for (const rl::Sample& sample : judged.samples) batch.push_back(&sample);
  } else {
    for (const int64_t item : items) batch.push_back(&inputs_.data.samples[static_cast<size_t>(item)]);
  }
  double tokens = 0.0;
  for (const rl::Sample* sample : batch) tokens += static_cast<double>(sample->num_tokens());
  trainer::Metrics raw;
  try {
    // The log-probs of judged answers are those of a forward just now.
    raw = trainer_->step(
        batch, preferences_ ? trainer::RolloutLogprobs::kOfTheseWeights : trainer::RolloutLogprobs::kOfOtherWeights);
  } catch (const trainer::StepAbandoned&) {
    return std::nullopt;
  }
  if (preferences_) {
    // The trainer's loss has the right gradient, but its value and those of its terms mean nothing for preferences.
    // Only the term that balances experts, which it has added, is kept.
    const double balance = raw.contains("moe/aux_loss") ? raw.at("loss") - raw.at("pg_loss") : 0.0;
    for (const char* const name : {"pg_loss", "pg_clipfrac", "ppo_kl"}) raw.erase(name);
    raw["loss"] = judged.loss + balance;
  }
  report::Metrics metrics = health_.observe_step(step, batch, raw.at("lr"));
  metrics.merge(log.take());
  metrics.merge(session::recorded(raw));
  metrics.merge(judged.metrics);
  metrics.merge(traffic.metrics());
  const double seconds = std::max(base::seconds_since(begin), 1e-9);
  metrics["train/global_batch_size"] = static_cast<double>(items.size());
  metrics["fault/skipped_steps"] = metrics["train/step_skipped"];
  metrics["perf/actor_train_time"] = seconds;
  metrics["perf/actor_train_tok_per_s"] = tokens / seconds;
  log.report().log("train", step, metrics);
  see_skipped(step, metrics, items);
  return metrics;
}

// Reports a step that taught nothing; too many in a row end the run.
void SftLearner::see_skipped(int64_t step, const report::Metrics& metrics, const std::vector<int64_t>& items) {
  skipped_in_a_row_ = count_skipped(skipped_in_a_row_, metrics);
  if (metrics.at("train/step_skipped") == 0.0) return;
  const std::string what = skipped_text(metrics, [this] { return inputs_.session.describe_not_finite(); });
  base::log_warning("step {}: was skipped: {}; nothing was changed", step + 1, what);
  if (skipped_in_a_row_ < inputs_.config.checkpoints.max_skipped_steps) return;
  std::set<std::string> places;
  const int64_t each = inputs_.config.preference.answers_of_item();
  for (const int64_t item : items) places.insert(inputs_.data.places[static_cast<size_t>(item * each)]);
  why_to_stop_ = fmt::format(
      "{} in a row {} skipped (--max-skipped-steps): lower --lr, or look at what the last one was made of, {}; it had "
      "{}",
      base::counted(skipped_in_a_row_, "optimizer step"), skipped_in_a_row_ == 1 ? "was" : "were",
      fmt::join(places, ", "), what);
}

std::optional<HeldOut::Result> SftLearner::evaluate(report::Report& report) const {
  return inputs_.held_out.evaluate(*model_, inputs_.trainer.batch, report);
}

}  // namespace tandem::run
