// What LearningHealth says: a case in plain words, its likely cause, and the flag or file to change. One line each.
#pragma once

#include <cstdint>
#include <string>

#include "rl/learning_health.h"

namespace tandem::rl {

// `stretch`: the rollouts that show the case. Not for kLearningRateZero and kLossMaskZero, which are of steps, nor for
// the cases of a filter.
std::string fault_sentence(Fault fault, const HealthSettings& settings, const Streak& stretch);

// The task is solved, as far as rewards can tell. `from_the_start`: no reward of the run has been lower.
std::string solved_sentence(const HealthSettings& settings, const Streak& stretch, bool from_the_start);

// Of the filter in the rollout `rollout`, from 0.
std::string filter_drops_most_sentence(const HealthSettings& settings, int64_t rollout, const FilterStats& stats);
std::string too_few_groups_sentence(const HealthSettings& settings, int64_t rollout, const FilterStats& stats);

// Of the optimizer step `step`, from 0.
std::string learning_rate_sentence(const HealthSettings& settings, int64_t step);
std::string loss_mask_sentence(int64_t step, int64_t num_samples, int64_t num_tokens);

}  // namespace tandem::rl
