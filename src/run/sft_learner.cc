#include "run/sft_learner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/clock.h"
#include "base/log.h"
#include "run/health_settings.h"
#include "run/patience.h"
#include "session/stop_signal.h"
#include "session/trainer_setup.h"
#include "tandem/error.h"

namespace tandem::run {

SftLearner::SftLearner(const SftInputs& inputs)
    : inputs_(inputs),
      order_(inputs.data.file_sizes, inputs.config.data.prompt_data_weights, inputs.config.rollout_shuffle,
             static_cast<uint64_t>(inputs.config.rollout_seed)),
      health_(signal_settings(inputs.config.optimizer, inputs.num_steps)),
      model_(inputs.session.make_model()) {
  trainer::TrainerConfig config = inputs.trainer;
  config.abandon = [grace = inputs.config.checkpoints.stop_grace_seconds] {
    return session::seconds_since_stop() > grace;
  };
  trainer_ = trainer::make_trainer(config, inputs.session.trained(), *model_);
}

void SftLearner::restore(const checkpoint::RunState& saved) {
  order_.set_cursor(saved.cursor);
  skipped_in_a_row_ = saved.skipped_in_a_row;
}

std::optional<report::Metrics> SftLearner::step(int64_t step, RunLog& log) {
  const base::Clock::time_point begin = base::Clock::now();
  std::vector<int64_t> indices;
  std::vector<const rl::Sample*> batch;
  double tokens = 0.0;
  for (int64_t i = 0; i < inputs_.config.global_batch_size; ++i) {
    indices.push_back(order_.next());
    const rl::Sample& sample = inputs_.data.samples[static_cast<size_t>(indices.back())];
    batch.push_back(&sample);
    tokens += static_cast<double>(sample.num_tokens());
  }
  trainer::Metrics raw;
  try {
    raw = trainer_->step(batch);
  } catch (const trainer::StepAbandoned&) {
    return std::nullopt;
  }
  report::Metrics metrics = health_.observe_step(step, batch, raw.at("lr"));
  metrics.merge(log.take());
  metrics.merge(session::recorded(raw));
  const double seconds = std::max(base::seconds_since(begin), 1e-9);
  metrics["train/global_batch_size"] = static_cast<double>(batch.size());
  metrics["fault/skipped_steps"] = metrics["train/step_skipped"];
  metrics["perf/actor_train_time"] = seconds;
  metrics["perf/actor_train_tok_per_s"] = tokens / seconds;
  log.report().log("train", step, metrics);
  see_skipped(step, metrics, indices);
  return metrics;
}

// Reports a step that taught nothing; too many in a row end the run.
void SftLearner::see_skipped(int64_t step, const report::Metrics& metrics, const std::vector<int64_t>& indices) {
  skipped_in_a_row_ = count_skipped(skipped_in_a_row_, metrics);
  if (metrics.at("train/step_skipped") == 0.0) return;
  const std::string what = skipped_text(metrics, [this] { return inputs_.session.describe_not_finite(); });
  base::log_warning("step {}: was skipped: {}; nothing was changed", step + 1, what);
  if (skipped_in_a_row_ < inputs_.config.checkpoints.max_skipped_steps) return;
  std::set<std::string> places;
  for (const int64_t index : indices) places.insert(inputs_.data.places[static_cast<size_t>(index)]);
  throw UserError(fmt::format(
      "{} optimizer steps in a row were skipped (--max-skipped-steps): lower --lr, or look at what the last one was "
      "made of, {}; it had {}",
      skipped_in_a_row_, fmt::join(places, ", "), what));
}

std::optional<HeldOut::Result> SftLearner::evaluate(report::Report& report) const {
  return inputs_.held_out.evaluate(*model_, inputs_.trainer.batch, report);
}

}  // namespace tandem::run
