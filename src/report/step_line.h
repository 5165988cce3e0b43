// The line that a person reads after each rollout of a training run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "report/report.h"

namespace tandem::report {

// Where a run is: what stands beside the numbers of its last rollout.
struct Progress {
  int64_t rollout = 0, num_rollouts = 0;  // finished, in all
  int64_t first_rollout = 0;              // finished before this process began
  int64_t num_groups = 0;                 // of one rollout
  int64_t num_failed = 0;                 // samples whose grading failed
  int64_t num_dropped = 0;                // of those: without a reward
  int64_t num_excess = 0;                 // groups that were sampled and not looked at, by dynamic sampling
  double elapsed_s = 0.0;                 // of this process
};

// The value of this metric as it is shown: 0 where it is a sum that cancels and what is left is rounding (a loss of
// 1e-17, on policy).
double without_rounding(std::string_view metric, double value);

// "rollout 3/300  reward 0.431  length 5.2  ...  2 of 32 groups have equal rewards  0.21 s  elapsed 0:04  ETA 1:02".
// What is 0 because nothing of the kind happened (truncated, failed, groups) is left out. `metrics` are the rollout's,
// `last_step` those of its last optimizer step.
// Where that is longer than `columns`, what follows the numbers has a line of its own.
std::string step_line(const Progress& progress, const Metrics& metrics, const Metrics& last_step, size_t columns);

// The last line of a run: how far it got, and how it can go on where it was stopped. `saved`: the last rollout that is
// saved, 0 for none.
std::string end_line(bool stopped, const Progress& progress, int64_t saved, int64_t num_warnings,
                     const std::string& path);

}  // namespace tandem::report
