// `tandem sft`: supervised training on prompts with responses; the trainer alone, with the likelihood as its loss.
#pragma once

#include "run/run_mode.h"
#include "run/verb_configs.h"

namespace tandem::run {

// Returns the exit code: 0, or kExitInterrupted.
int train_supervised(const SftConfig& config, const RunMode& mode);

}  // namespace tandem::run
