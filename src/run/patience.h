// Ends a run in which everything goes wrong: after too many optimizer steps in a row that were skipped, or too many
// rollouts in a row in which the reward failed on every sample, or a group filter on every group, or the user's
// function of advantages on the rollout; and at its end, if the reward never worked. The counts are part of a
// checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "checkpoint/run_directory.h"
#include "checkpoint/run_state.h"
#include "config/checkpoint_options.h"
#include "report/report.h"
#include "run/run_log.h"
#include "sampling/rollout.h"

namespace tandem::run {

// Returns how many optimizer steps in a row were skipped, given how many were before this one. A step whose gradient is
// 0 neither went wrong nor shows that steps go well again: it leaves the count as it is.
int64_t count_skipped(int64_t skipped_before, const report::Metrics& step_metrics);

// Says which of the weights is not finite; "" if all are (session::ModelSession::describe_not_finite).
using DescribeNotFinite = std::function<std::string()>;

// Returns "loss nan, gradient norm 12", and after it which of the weights is not finite if the loss or the norm is not.
std::string skipped_text(const report::Metrics& step_metrics, const DescribeNotFinite& describe_not_finite);

class Patience {
 public:
  // Borrows limits and directory; `start` gives the first counts.
  Patience(const config::CheckpointOptions& limits, const checkpoint::RunDirectory& directory,
           DescribeNotFinite describe_not_finite, const checkpoint::RunState& start)
      : limits_(limits),
        directory_(directory),
        describe_not_finite_(std::move(describe_not_finite)),
        skipped_steps_(start.skipped_in_a_row),
        failed_rollouts_(start.failed_in_a_row),
        ungraded_rollouts_(start.ungraded_in_a_row) {}

  // Call it after an optimizer step of a rollout (counted from 0). A skipped step is reported. After
  // --max-skipped-steps the rollout is written out for a replay, by `log`, and is the last one.
  void observe_step(int64_t rollout_id, const report::Metrics& step_metrics, const sampling::Rollout& rollout,
                    RunLog& log);
  // Call it after a rollout was trained on and logged, when its weights may be saved. Throws UserError after
  // --max-failed-rollouts, and after --max-skipped-steps.
  void observe_rollout(int64_t rollout_id, const sampling::Rollout& rollout);

  // Call it after the last rollout of the run; `num_finished` rollouts are finished. Throws UserError if grading failed
  // for every sample of all of them, or the user's function of advantages, however few they are.
  void check_that_some_were_graded(int64_t num_finished) const;

  // Adds the counts to what a checkpoint holds.
  void save(checkpoint::RunState& state) const;

 private:
  const config::CheckpointOptions& limits_;
  const checkpoint::RunDirectory& directory_;
  const DescribeNotFinite describe_not_finite_;
  int64_t skipped_steps_, failed_rollouts_;  // counts in a row, up to now
  int64_t ungraded_rollouts_;  // failed rollouts in which rewards or advantages failed, not the filter alone
  std::string why_to_stop_;    // after this rollout
  // The last rollout's failure: which part failed ("grading", or the flag of a user's function), and the first message
  // about it. A run that resumes when no rollout is left has seen no failure of its own.
  std::string last_failed_ = "grading", last_failure_;
};

}  // namespace tandem::run
