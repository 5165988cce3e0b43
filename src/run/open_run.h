// How a training run begins on disk, and what is put back where it resumes.
#pragma once

#include <optional>

#include "checkpoint/checkpoints.h"
#include "checkpoint/resume.h"
#include "checkpoint/run_directory.h"
#include "checkpoint/saving_ranks.h"
#include "config/checkpoint_options.h"
#include "trainer/trainer.h"
#include "weights/store.h"

namespace tandem::run {

// Makes the directory and takes its lock; a stop signal no longer ends the process at once. A run that resumes gets
// trainer and weights as they were when its checkpoint was made, and what it wrote into this directory since is taken
// back. Returns the state that the run begins with: for a new run all 0. When a checkpoint cannot be read (UserError),
// the directory keeps what it held. Every rank calls it; the directory is the conductor's, and nothing in it changes
// before all ranks have called.
checkpoint::RunState open_run(checkpoint::RunDirectory& directory,
                              const std::optional<checkpoint::Checkpoint>& checkpoint,
                              const config::CheckpointOptions& options, trainer::Trainer& trainer,
                              weights::WeightStore& store, const checkpoint::SavingRanks& ranks = {});

}  // namespace tandem::run
