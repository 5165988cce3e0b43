// Writes LearningHealth's warnings, one line each: the fault in plain words, its likely cause, and the flag or file to
// change.
#pragma once

#include <cstdint>
#include <string>

#include "rl/learning_health.h"

namespace tandem::rl {

// `stretch` holds the rollouts that show the fault. kLearningRateZero and kLossMaskZero, which are faults of steps, and
// a filter's faults have functions of their own.
std::string fault_sentence(Fault fault, const HealthSettings& settings, const Streak& stretch);

// Returns the sentence for a task that is solved, as far as rewards can tell. `from_the_start` means that no reward of
// the run has been lower.
std::string solved_sentence(const HealthSettings& settings, const Streak& stretch, bool from_the_start);

// These return the sentences about the filter in rollout `rollout`, which counts from 0.
std::string filter_drops_most_sentence(const HealthSettings& settings, int64_t rollout, const FilterStats& stats);
std::string too_few_groups_sentence(const HealthSettings& settings, int64_t rollout, const FilterStats& stats);

// These return the sentences for optimizer step `step`, which counts from 0.
std::string learning_rate_sentence(const HealthSettings& settings, int64_t step);
std::string loss_mask_sentence(int64_t step, int64_t num_samples, int64_t num_tokens);

}  // namespace tandem::rl
