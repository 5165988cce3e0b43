// `tandem train` in a process that only samples: a worker of the run whose conductor it finds on this machine.
#pragma once

#include "config/run_mode.h"
#include "config/train_config.h"

namespace tandem::sampling {

// Joins the run, holds weights, keys and values and nothing else, and samples and grades what it is given until the run
// ends or the process is asked to stop. `config`: with this process's own device. Returns the exit code. UserError: the
// run has other flags, or another build. EnvironmentError: there is no run, or it is gone.
int serve_rollouts(const config::TrainConfig& config, const config::RunMode& mode);

}  // namespace tandem::sampling
