// Reports a training run to Weights & Biases.
#pragma once

#include <optional>

#include "base/json.h"
#include "checkpoint/run_directory.h"
#include "config/output_options.h"
#include "text/wandb.h"

namespace tandem::run {

// Call it before the weights are read: throws EnvironmentError, with the remedy, if --use-wandb could not begin.
void check_wandb(const config::OutputOptions& options);

// Returns nothing without --use-wandb. The directory has been created. A run keeps its id in wandb_run_id there, so
// that --load into the same directory continues it; --wandb-run-id beats it. `values` are all options, without secrets.
std::optional<text::WandbRun> wandb_run(const config::OutputOptions& options, const checkpoint::RunDirectory& directory,
                                        const base::Json& values);

}  // namespace tandem::run
