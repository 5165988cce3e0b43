// Formats the line that a person reads after each rollout of a training run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "report/report.h"

namespace tandem::report {

// Holds the progress of a run, shown with the numbers of its last rollout.
struct Progress {
  int64_t rollout = 0, num_rollouts = 0;  // finished, and all
  int64_t first_rollout = 0;              // finished before this process began
  int64_t num_groups = 0;                 // groups of one rollout
  int64_t num_failed = 0;                 // samples whose grading failed
  int64_t num_dropped = 0;                // failed samples without a reward
  int64_t num_not_applied_to = 0;         // samples without a reward to which it does not apply; none of them failed
  int64_t num_excess = 0;                 // groups that dynamic sampling sampled and did not use
  double elapsed_s = 0.0;                 // time of this process
};

// Returns the value of this metric as it is shown: 0 if it is a sum that cancels and only rounding is left (a loss of
// 1e-17, on policy).
double without_rounding(std::string_view metric, double value);

// Returns "rollout 3/300  reward 0.431  length 5.2  ...  2 of 32 groups have equal rewards  0.21 s  elapsed 0:04  ETA
// 1:02". Counts of 0 (truncated, failed, groups) are left out. `metrics` are the rollout's, `last_step` those of its
// last optimizer step. If the line is longer than `columns`, the part after the numbers gets a line of its own.
std::string step_line(const Progress& progress, const Metrics& metrics, const Metrics& last_step, size_t columns);

// Returns where a run's results are, or how it goes on, or begins again, if it was stopped after `finished` rollouts or
// steps. `saved` is the last that is saved, 0 for none.
std::string result_or_resume(bool stopped, int64_t finished, int64_t saved, const std::string& path);

// Returns the last line of a run: how far it got, and result_or_resume().
std::string end_line(bool stopped, const Progress& progress, int64_t saved, int64_t num_warnings,
                     const std::string& path);

}  // namespace tandem::report
