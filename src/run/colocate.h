// `tandem train --colocate`: trainer and engine take turns on one device, over one copy of the weights.
#pragma once

#include "run/run_mode.h"
#include "run/train_config.h"

namespace tandem::run {

// Returns the exit code: 0, or kExitInterrupted. Throws what tandem/error.h names.
int train_colocated(const TrainConfig& config, const RunMode& mode);

}  // namespace tandem::run
