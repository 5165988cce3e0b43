// What a training run tells Weights & Biases of itself.
#pragma once

#include <optional>

#include "base/json.h"
#include "checkpoint/run_directory.h"
#include "config/output_options.h"
#include "text/wandb.h"

namespace tandem::run {

// Before the weights are read: EnvironmentError where --use-wandb could not begin, with the remedy.
void check_wandb(const config::OutputOptions& options);

// Nothing without --use-wandb. The directory has been created. A run keeps its id in wandb_run_id there, so that
// --load into the same directory goes on with it; --wandb-run-id beats it. `values`: all options, without secrets.
std::optional<text::WandbRun> wandb_run(const config::OutputOptions& options, const checkpoint::RunDirectory& directory,
                                        const base::Json& values);

}  // namespace tandem::run
