// Runs `tandem train` in a process that only samples: a rollout worker of the run that session/run_address.h finds.
#pragma once

#include "config/run_mode.h"
#include "config/train_config.h"
#include "mesh/launch/launch.h"

namespace tandem::rollout_worker {

// Joins the run, holds nothing but weights and a KV cache, and samples and grades what it is given until the run ends
// or the process is asked to stop. `config` has this process's own device. Returns the exit code. Throws UserError if
// the run has other flags or another build, and EnvironmentError if there is no run, or it is gone.
int serve_rollouts(const config::TrainConfig& config, const config::RunMode& mode, const mesh::Launch& launch);

}  // namespace tandem::rollout_worker
