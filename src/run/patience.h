// When a run that only goes wrong ends: after too many optimizer steps in a row that were skipped, or too many rollouts
// in a row in which the reward failed on every sample. Both counts are part of a checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "run/checkpoint_options.h"
#include "run/report.h"
#include "run/rollout_phase.h"
#include "run/run_directory.h"

namespace tandem::run {

// How many optimizer steps in a row were skipped, given how many were before this one. A step whose gradient is 0
// neither went wrong nor shows that steps go well again: it leaves the count as it is.
int64_t count_skipped(int64_t skipped_before, const Metrics& step_metrics);

// "loss nan, gradient norm 12", and behind it which weight is not finite where the loss or the norm is not.
std::string skipped_text(const Metrics& step_metrics, const std::function<std::string()>& describe_weights);

class Patience {
 public:
  // Borrows both. `describe_weights` says which weight is not finite, or "".
  Patience(const CheckpointOptions& limits, const RunDirectory& directory,
           std::function<std::string()> describe_weights)
      : limits_(limits), directory_(directory), describe_weights_(std::move(describe_weights)) {}

  // After an optimizer step of a rollout, which counts from 0. A skipped one is said. UserError after
  // --max-skipped-steps, with the rollout written out for a replay.
  void see_step(int64_t rollout_id, const Metrics& step_metrics, const Rollout& rollout);
  // After a rollout was trained on and logged. UserError after --max-failed-rollouts.
  void see_rollout(int64_t rollout_id, const Rollout& rollout);

  int64_t skipped_steps() const { return skipped_steps_; }      // in a row, up to now
  int64_t failed_rollouts() const { return failed_rollouts_; }  // in a row, up to now
  void restore(int64_t skipped_steps, int64_t failed_rollouts);

 private:
  const CheckpointOptions& limits_;
  const RunDirectory& directory_;
  const std::function<std::string()> describe_weights_;
  int64_t skipped_steps_ = 0, failed_rollouts_ = 0;
};

}  // namespace tandem::run
