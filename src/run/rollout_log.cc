#include "run/rollout_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/files.h"
#include "base/log.h"
#include "evaluation/rollout_metrics.h"
#include "report/sample_file.h"
#include "report/step_line.h"
#include "session/stop_signal.h"
#include "session/together.h"

namespace tandem::run {

using base::Clock;
using base::seconds_since;

RolloutLog::RolloutLog(TrainInputs& inputs, session::RunMemory& memory, RunLog& log, int64_t first_rollout)
    : inputs_(inputs), memory_(memory), log_(log), first_rollout_(first_rollout), since_(Clock::now()) {}

void RolloutLog::sampled(const sampling::Rollout& rollout) {
  waited_s_ = seconds_since(since_);
  log_.add(evaluation::rollout_times(rollout));
}

void RolloutLog::training_begins() { since_ = Clock::now(); }

void RolloutLog::training_ended() { trained_s_ = seconds_since(since_); }

void RolloutLog::weights_updated(const std::optional<Rollouts::WeightUpdate>& update) {
  sent_s_ = update ? update->seconds : 0.0;
  if (!update) return;
  log_.add({{"perf/update_weights_time", update->seconds}});
  if (update->num_sent_again > 0) log_.add({{"fault/weights_sent_again", static_cast<double>(update->num_sent_again)}});
}

void RolloutLog::write(int64_t rollout_id, const sampling::Rollout& rollout) {
  const double step_s = waited_s_ + trained_s_ + sent_s_;
  log_.add(memory_.metrics());
  log_.add({{"perf/train_time", trained_s_},
            {"perf/train_wait_time", waited_s_},
            {"perf/step_time", step_s},
            {"perf/wait_time_ratio", waited_s_ / step_s}});
  record_ = log_.take();
  log_.report().log_memory(memory_.timeline(rollout_id));
  log_.report().log("rollout", rollout_id, record_);
  const config::OutputOptions& output = inputs_.config.output;
  const std::vector<std::string> sources = inputs_.prompts.sources_of(rollout.samples);
  if (output.sample_dump_interval > 0 && rollout_id % output.sample_dump_interval == 0) {
    log_.write_samples(fmt::format("{}/rollout_{:06}.jsonl", inputs_.directory.samples_folder(), rollout_id),
                       rollout.samples, rollout.grades, report::SampleDetail::kReadable, sources,
                       token_bytes(rollout.samples));
  }
  if (const std::string& pattern = output.save_debug_rollout_data; !pattern.empty()) {
    log_.write_samples(report::rollout_path("--save-debug-rollout-data", pattern, rollout_id), rollout.samples,
                       rollout.grades, report::SampleDetail::kFull, sources);
  }
}

std::span<const std::string> RolloutLog::token_bytes(std::span<const rl::Sample> samples) {
  const bool have_own = std::ranges::any_of(samples, [](const rl::Sample& each) { return each.advantages.size() > 1; });
  if (!have_own || !log_.is_conductor()) return {};
  return inputs_.session.text().token_bytes();
}

void RolloutLog::print(int64_t num_finished, const sampling::Rollout& rollout, const report::Metrics& last_step) {
  const int64_t n = inputs_.config.rollout.n_samples_per_prompt;
  const int64_t num_exempt = evaluation::num_not_applied_to(rollout);  // they have not failed
  log_.report().print(report::step_line({.rollout = num_finished,
                                         .num_rollouts = inputs_.num_rollouts,
                                         .first_rollout = first_rollout_,
                                         .num_groups = std::ssize(rollout.samples) / n,
                                         .num_failed = rollout.num_failed - num_exempt,
                                         .num_dropped = rollout.num_dropped - num_exempt,
                                         .num_not_applied_to = num_exempt,
                                         .num_excess = rollout.filtered ? rollout.filtered->num_excess : 0,
                                         .elapsed_s = log_.report().seconds()},
                                        record_, last_step, log_.report().line_columns()));
  since_ = Clock::now();
}

void RolloutLog::print_abandoned(int64_t rollout_id, bool changed_nothing) {
  log_.report().print(fmt::format(
      "rollout {} was abandoned {:.0f} s after the signal (--stop-grace-seconds){}", rollout_id + 1,
      session::seconds_since_stop(),
      changed_nothing
          ? ""
          : "; some of its optimizer steps have changed the weights, so what was saved before is what remains"));
}

int finish_run(const TrainInputs& inputs, const session::RunMemory& memory, RunLog& log, int64_t num_finished,
               int64_t saved) {
  const std::string trace = inputs.directory.memory_trace_file();
  if (log.is_conductor()) {
    log.write_or_count(trace, "fault/unwritten_samples", [&] { base::write_file_durably(trace, memory.trace()); });
  }
  // A scheduler may tell one rank alone to stop, which stops all.
  const int signal = session::stop_signal_of_any(inputs.mesh->host());
  return log.finish(
      signal, saved > 0,
      report::end_line(/*is_interrupted=*/signal != 0, {.rollout = num_finished, .num_rollouts = inputs.num_rollouts},
                       saved, base::num_warnings(), inputs.directory.path()));
}

}  // namespace tandem::run
