// `tandem train`: GRPO over one copy of the weights, as a loop over parts that each own one thing.
#pragma once

#include "run/run_mode.h"
#include "run/train_config.h"

namespace tandem::run {

// Returns the exit code: 0, or that of the signal which ended the run. Throws what tandem/error.h names; what was
// learnt up to the last finished rollout is saved then.
int train(const TrainConfig& config, const RunMode& mode);

}  // namespace tandem::run
