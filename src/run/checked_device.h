// Asks, before a run uses its device, whether that is as the run needs it: where only the device itself can tell
// (BackendRow::rungs), `tandem device --check` has to have said yes on this stack.
#pragma once

#include "config/train_config.h"

namespace tandem::run {

// Returns the configuration with which the run goes on. Runs the check where none is kept, once for all processes of
// the user. Throws EnvironmentError if the device does not compute what it should or, without --allow-inexact, if a
// row's bits depend on its batch. With it, such a device is trained on off policy: the trainer scores the old
// log-probs, TIS weighs them against the engine's, and the configuration says so (is_inexact_device).
config::TrainConfig on_checked_device(config::TrainConfig config);

}  // namespace tandem::run
