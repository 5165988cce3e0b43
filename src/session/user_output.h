// Chooses the file in which a rollout worker writes what reward code prints. No torch.
#pragma once

#include <string>

namespace tandem::session {

// Returns the run's file if its directory can be seen: on the run's machine, and on machines that share files.
// Otherwise returns the file of that name in the working directory of this process, and logs a warning.
std::string user_output_file(const std::string& of_run);

}  // namespace tandem::session
