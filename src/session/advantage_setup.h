// Sets up the process that computes advantages, as the flags ask for it. No torch.
#pragma once

#include <string>

#include "config/reward_options.h"
#include "reward/advantage_function.h"
#include "session/grader_setup.h"

namespace tandem::session {

// Returns the configuration of the process: it is confined, and has the limits, of those of the run's rewards.
reward::AdvantageConfig advantage_config(const std::string& function, const config::RewardOptions& reward,
                                         const RewardContext& context);

// Loads the function once, so that one that cannot be used is refused before weights are read. "": there is none.
// Throws UserError.
void try_out_advantages(const std::string& function, const config::RewardOptions& reward, const RewardContext& context);

}  // namespace tandem::session
