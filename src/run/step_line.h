// The line that a person reads after each step of a training run.
#pragma once

#include <cstdint>
#include <string>

#include "run/report.h"
#include "run/rollout_phase.h"

namespace tandem::run {

// "step 3/300  reward 0.431  length 5.2  ...  no signal 2/32 groups  rollout 0.10 s  train 0.05 s". `metrics` are the
// rollout's, `last_step` those of its last optimizer step.
std::string step_line(int64_t step, int64_t num_steps, int64_t num_groups, const Rollout& rollout,
                      const Metrics& metrics, const Metrics& last_step);

}  // namespace tandem::run
