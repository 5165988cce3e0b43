// Decides from --load and --save together which checkpoint a run resumes from, and in which directory it writes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "checkpoint/checkpoints.h"
#include "checkpoint/run_directory.h"
#include "config/checkpoint_options.h"

namespace tandem::checkpoint {

// Opens the checkpoint that --load names; nullopt for a new run. Throws UserError if --load has none, unless
// --allow-fresh-start is given, and if it is of another command than the one with these `flags`
// (RunMode::result_options).
std::optional<Checkpoint> open_checkpoint(const config::CheckpointOptions& options,
                                          const std::map<std::string, std::string>& flags);

// Throws UserError if a checkpoint after `num_done` steps is beyond the `num_steps` of the run.
void check_length(const config::CheckpointOptions& options, int64_t num_done, int64_t num_steps);

// Returns whether --load is the directory that the run writes into. Throws EnvironmentError if the disk does not say.
bool resumes_in_place(const config::CheckpointOptions& options, const std::string& save);

// Throws EnvironmentError if another process has saved, removed or chosen a checkpoint in the folder of this one since
// open_checkpoint() returned it. Call it once the folder is locked: to go back to this checkpoint would undo the
// other's work.
void check_still_opened(const Checkpoint& checkpoint);

// Returns what the directory that the run writes into may hold when the run begins.
RunFolder run_folder(const config::CheckpointOptions& options, const std::string& save, bool overwrite);

}  // namespace tandem::checkpoint
