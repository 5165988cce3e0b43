// `tandem generate`: completions of each prompt.
#pragma once

#include "run/run_mode.h"
#include "run/verb_configs.h"

namespace tandem::run {

// Returns the exit code: 0, or kExitInterrupted.
int generate(const GenerateConfig& config, const RunMode& mode);

}  // namespace tandem::run
