// `tandem sft`: supervised training on conversations, or on prompts with responses; the trainer alone, with the
// likelihood as its loss.
#pragma once

#include "run/run_mode.h"
#include "run/sft_config.h"

namespace tandem::run {

// Returns the exit code: 0, or kExitInterrupted.
int train_supervised(const SftConfig& config, const RunMode& mode);

}  // namespace tandem::run
