// Finds the folder of the running program. Modules, worker package and interpreter are searched for relative to it.
#pragma once

#include <string>

namespace tandem::base {

// Returns the folder of the program's file, with links followed; "" if the kernel does not tell.
std::string program_folder();

}  // namespace tandem::base
