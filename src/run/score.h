// `tandem score`: log-probs and entropies of given sequences.
#pragma once

#include "run/run_mode.h"
#include "run/verb_configs.h"

namespace tandem::run {

// Returns the exit code: 0, or kExitInterrupted.
int score(const ScoreConfig& config, const RunMode& mode);

}  // namespace tandem::run
