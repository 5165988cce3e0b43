// The processes that make samples with the user's function, as the flags ask for them. No torch.
#pragma once

#include <string>

#include "config/custom_generate_options.h"
#include "config/reward_options.h"
#include "reward/generators.h"
#include "session/grader_setup.h"

namespace tandem::session {

// Only where the options are on. Interpreter, memory and sandbox are those of reward code.
reward::GeneratorConfig generator_config(const config::CustomGenerateOptions& options,
                                         const config::RewardOptions& reward, const std::string& model_directory,
                                         const RewardContext& context);

// Loads the function once, where there is one, so that what is wrong with it is found before weights are read.
// UserError.
void try_out_generation(const config::CustomGenerateOptions& options, const config::RewardOptions& reward,
                        const std::string& model_directory, const RewardContext& context);

}  // namespace tandem::session
