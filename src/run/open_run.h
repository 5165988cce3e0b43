// Begins a training run on disk, and restores its state if it resumes.
#pragma once

#include <optional>

#include "checkpoint/checkpoints.h"
#include "checkpoint/run_directory.h"
#include "checkpoint/run_state.h"
#include "checkpoint/saving_ranks.h"
#include "config/checkpoint_options.h"
#include "trainer/trainer.h"
#include "weights/store.h"

namespace tandem::run {

// Makes the directory and takes its lock; a stop signal no longer ends the process at once. A run that resumes gets
// trainer and weights as they were when its checkpoint was made, and what it wrote into this directory since is taken
// back. Returns the state that the run begins with, all 0 for a new run. Throws UserError when a checkpoint cannot be
// read; the directory keeps what it held. Every rank calls it; the directory belongs to rank 0, and nothing in it
// changes before all ranks have called.
checkpoint::RunState open_run(checkpoint::RunDirectory& directory,
                              const std::optional<checkpoint::Checkpoint>& checkpoint,
                              const config::CheckpointOptions& options, trainer::Trainer& trainer,
                              weights::WeightStore& store, const checkpoint::SavingRanks& ranks = {});

}  // namespace tandem::run
