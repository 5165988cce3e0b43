// Collects what rl::LearningHealth has to know of a run's options, model and data.
#pragma once

#include <cstdint>

#include "config/train_config.h"
#include "model/config.h"
#include "rl/learning_health.h"
#include "session/prompt_set.h"

namespace tandem::run {

// Returns the settings of a run of so many rollouts and optimizer steps.
rl::HealthSettings signal_settings(const config::TrainConfig& config, const model::ModelConfig& model,
                                   const session::PromptSet& prompts, int64_t num_rollouts, int64_t num_steps);
// Returns the settings of a run without rollouts.
rl::HealthSettings signal_settings(const config::OptimizerOptions& optimizer, int64_t num_steps);

}  // namespace tandem::run
