// Finds the arguments by which a run is started again after it has failed, from what lies in its folder of --save.
#pragma once

#include <string>
#include <vector>

#include "config/checkpoint_options.h"

namespace tandem::cli {

// Returns what the folder of --save holds, as text that changes when a run there saves a checkpoint. Throws UserError
// or EnvironmentError if it cannot be looked at: a run that was restarted then might replace its own checkpoints.
std::string saved_state(const std::string& save);
constexpr const char* kNothingSaved = "nothing";        // of a folder that is empty or does not exist
constexpr const char* kNoCheckpoint = "no checkpoint";  // of a folder that holds something else

// Returns the arguments of the verb by which a run that has begun resumes from its last checkpoint, or begins again
// where it has none. `save` and `checkpoints` are its flags. `saved_before` is what saved_state() returned before it
// was first started: a checkpoint that was there then is another run's and is not resumed. A flag that is given twice
// has its last value, so an earlier --load does no harm.
std::vector<std::string> restarted(std::vector<std::string> arguments, const std::string& save,
                                   const config::CheckpointOptions& checkpoints, const std::string& saved_before);

}  // namespace tandem::cli
