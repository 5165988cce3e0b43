// `tandem export`: a checkpoint rewritten as a plain Hugging Face directory.
#pragma once

#include "run/run_mode.h"
#include "run/verb_configs.h"

namespace tandem::run {

// Returns the exit code: 0, or kExitInterrupted.
int export_checkpoint(const ExportConfig& config, const RunMode& mode);

}  // namespace tandem::run
