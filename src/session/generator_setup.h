// Sets up the processes that make samples with the user's function, as the flags ask for them. No torch.
#pragma once

#include <string>

#include "config/custom_generate_options.h"
#include "config/reward_options.h"
#include "reward/generators.h"
#include "session/grader_setup.h"

namespace tandem::session {

// Call it only if the options are on. Interpreter, memory and sandbox are those of reward code.
reward::GeneratorConfig generator_config(const config::CustomGenerateOptions& options,
                                         const config::RewardOptions& reward, const std::string& model_directory,
                                         const RewardContext& context);

// Loads the function once, if there is one, so that a mistake in it is found before weights are read. Throws UserError
// for a mistake.
void try_out_generation(const config::CustomGenerateOptions& options, const config::RewardOptions& reward,
                        const std::string& model_directory, const RewardContext& context);

}  // namespace tandem::session
