// Reads the configuration of the reward model that --rm-model names. No weight is read.
#pragma once

#include <optional>
#include <string>

#include "config/reward_options.h"
#include "model/config.h"

namespace tandem::session {

// Returns the configuration of the reward model's decoder: `policy`'s dtype and, where the policy is one rank's part,
// the part of that rank. It is unset without --rm-model. Throws UserError for a directory that is no reward model's.
std::optional<model::ModelConfig> read_reward_model(const config::RewardOptions& options,
                                                    const model::ModelConfig& policy);

}  // namespace tandem::session
