// `tandem eval`: mean reward and pass@k of a checkpoint on data sets.
#pragma once

#include "run/run_mode.h"
#include "run/verb_configs.h"

namespace tandem::run {

// Returns the exit code: 0, or kExitInterrupted.
int evaluate(const EvalConfig& config, const RunMode& mode);

}  // namespace tandem::run
