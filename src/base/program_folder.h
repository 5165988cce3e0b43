// Where the running program lies on disk, for what is looked for beside it.
#pragma once

#include <string>

namespace tandem::base {

// The folder of the program's file, links followed; "" where the kernel does not say.
std::string program_folder();

}  // namespace tandem::base
