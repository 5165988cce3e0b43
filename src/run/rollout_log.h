// What a training run tells of each rollout: its record with the times of its phases, the timeline of memory, its
// samples, and the line that a person reads.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "report/report.h"
#include "run/run_log.h"
#include "run/train_inputs.h"
#include "sampling/rollout_phase.h"
#include "session/run_memory.h"

namespace tandem::run {

class RolloutLog {
 public:
  // All borrowed. `first_rollout` are finished, and the wait for the next one's training begins now.
  RolloutLog(const TrainInputs& inputs, session::RunMemory& memory, RunLog& log, int64_t first_rollout);

  // The phases of one rollout, in this order: it was sampled, its training begins, and has ended, and whoever samples
  // has the new weights, which took so many seconds where other processes do.
  void sampled(const sampling::Rollout& rollout);
  void training_begins();
  void training_ended();
  void weights_updated(std::optional<double> seconds);

  // The record of a rollout, which counts from 0, with all that was added to the log since the last; the samples of
  // --sample-dump-interval and --save-debug-rollout-data. The wait for the next one's training begins at the line.
  void write(int64_t rollout_id, const sampling::Rollout& rollout);
  // Its line, when `num_finished` rollouts are. `last_step`: metrics of its last optimizer step.
  void print(int64_t num_finished, const sampling::Rollout& rollout, const report::Metrics& last_step);
  // Instead of both, for one whose training --stop-grace-seconds have ended. `saved`: the last rollout that is saved.
  void print_abandoned(int64_t rollout_id, int64_t saved);

 private:
  const TrainInputs& inputs_;
  session::RunMemory& memory_;
  RunLog& log_;
  const int64_t first_rollout_;
  base::Clock::time_point since_;  // the phase that is measured
  double waited_s_ = 0.0;          // since the last training: evaluation, checkpoint, sampling
  double trained_s_ = 0.0;
  double sent_s_ = 0.0;     // the new weights
  report::Metrics record_;  // the last
};

// The end of what a run tells: the trace of its memory, and its last line. `saved`: the last rollout that is saved.
// Returns the exit code.
int finish_run(const TrainInputs& inputs, const session::RunMemory& memory, RunLog& log, int64_t num_finished,
               int64_t saved);

}  // namespace tandem::run
