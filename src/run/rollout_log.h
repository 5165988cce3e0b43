// Reports each rollout of a training run: its record with the times of its phases, the timeline of memory, its samples,
// and the line that a person reads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "report/report.h"
#include "run/rollouts.h"
#include "run/run_log.h"
#include "run/train_inputs.h"
#include "sampling/rollout.h"
#include "session/run_memory.h"

namespace tandem::run {

class RolloutLog {
 public:
  // All are borrowed. `first_rollout` rollouts are finished, and the wait for the next one's training begins now.
  RolloutLog(TrainInputs& inputs, session::RunMemory& memory, RunLog& log, int64_t first_rollout);

  // Mark the phases of one rollout, in this order: it was sampled, its training begins, its training has ended, and the
  // engines have the new weights. `update` says how rollout workers got them, if there are any.
  void sampled(const sampling::Rollout& rollout);
  void training_begins();
  void training_ended();
  void weights_updated(const std::optional<Rollouts::WeightUpdate>& update);

  // Writes the record of a rollout (counted from 0), with all that was added to the log since the last one, and the
  // samples of --sample-dump-interval and --save-debug-rollout-data. The wait for the next one's training begins here.
  void write(int64_t rollout_id, const sampling::Rollout& rollout);
  // Prints the line of a rollout once `num_finished` rollouts are finished. `last_step` holds the metrics of its last
  // optimizer step.
  void print(int64_t num_finished, const sampling::Rollout& rollout, const report::Metrics& last_step);
  // Replaces write() and print() for a rollout whose training ended with --stop-grace-seconds. `changed_nothing`: it
  // did so before the first optimizer step.
  void print_abandoned(int64_t rollout_id, bool changed_nothing);

 private:
  // Returns the bytes of each token id where tokens of the samples have advantages of their own, else nothing.
  std::span<const std::string> token_bytes(std::span<const rl::Sample> samples);

  TrainInputs& inputs_;
  session::RunMemory& memory_;
  RunLog& log_;
  const int64_t first_rollout_;
  base::Clock::time_point since_;  // beginning of the phase that is measured
  double waited_s_ = 0.0;          // time since the last training: evaluation, checkpoint, sampling
  double trained_s_ = 0.0;
  double sent_s_ = 0.0;     // time that sending the new weights took
  report::Metrics record_;  // the last record
};

// Ends the reports of a run with the trace of its memory and its last line. `saved` is the last rollout that is saved.
// Returns the exit code.
int finish_run(const TrainInputs& inputs, const session::RunMemory& memory, RunLog& log, int64_t num_finished,
               int64_t saved);

}  // namespace tandem::run
