// Where a process that only samples writes what reward code prints. No torch.
#pragma once

#include <string>

namespace tandem::session {

// The run's file where its directory is to be seen: on the run's machine, and where machines share files. Else the file
// of that name in the working directory of this process, and a warning says so.
std::string user_output_file(const std::string& of_run);

}  // namespace tandem::session
