#include "run/evaluator.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"

namespace tandem::run {

bool Evaluator::is_due_at_start(int64_t rollout_id) const {
  return is_due_ || (!inputs_.config.skip_eval_before_train && rollout_id == 0);
}

bool Evaluator::is_due_after(int64_t rollout_id) const {
  const std::optional<int64_t>& interval = inputs_.config.eval_interval;
  return rollout_id == inputs_.num_rollouts || (interval && rollout_id % *interval == 0);
}

std::optional<sampling::CustomGeneration> Evaluator::generation() const {
  return sampling::custom_generation(inputs_.config.custom_generate, inputs_.config.data.lines.metadata_key,
                                     inputs_.session.config(), rewards_.generators(), /*is_evaluation=*/true);
}

// Warns that no sample has passed yet: --save-best would keep no weights, and say nothing.
void Evaluator::warn_of_pass_doubt(const evaluation::Evaluation::Result& result) {
  const std::string& metric = inputs_.config.output.save_best;
  if (!metric.starts_with("eval/" + result.name + "-pass@")) return;
  const auto passed = result.metrics.find(metric);
  if (passed != result.metrics.end() && passed->second > 0.0) doubts_pass_ = false;
  if (result.pass_doubt.empty() || !std::exchange(doubts_pass_, false) || !phase_.speaks()) return;
  base::log_warning(
      "--save-best {}: {}; if it never gives more, lower --pass-threshold (pass_threshold of a data set of "
      "--eval-config), or name another reward (--pass-reward)",
      metric, result.pass_doubt);
}

void Evaluator::run(int64_t rollout_id) {
  if (inputs_.evaluation.empty()) return;
  const base::Clock::time_point begin = base::Clock::now();
  const std::optional<std::vector<evaluation::Evaluation::Result>> results =
      inputs_.evaluation.run(phase_, rewards_.of_evaluation(), generation(), judge_, log_.report());
  is_due_ = !results;
  if (!results) return;
  log_.add({{"perf/eval_time", base::seconds_since(begin)}});
  report::Metrics all;
  for (const evaluation::Evaluation::Result& result : *results) {
    log_.report().log("eval", rollout_id, result.metrics);
    all.insert(result.metrics.begin(), result.metrics.end());
    warn_of_pass_doubt(result);
    if (result.is_scored()) {
      log_.report().print(evaluation::eval_line(result));
    } else if (phase_.speaks()) {
      base::log_warning("{}", evaluation::unscored_line(result));
    }
    if (inputs_.config.output.sample_dump_interval > 0) {
      log_.write_samples(
          fmt::format("{}/eval_{}_{:06}.jsonl", inputs_.directory.samples_folder(), result.name, rollout_id),
          result.rollout.samples, result.rollout.grades, report::SampleDetail::kReadable);
    }
  }
  best_.observe(rollout_id, all);
}

}  // namespace tandem::run
