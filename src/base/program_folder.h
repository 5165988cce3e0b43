// Finds the folder of the running program. Modules, worker package and interpreter are searched for relative to it.
#pragma once

#include <string>

namespace tandem::base {

// The folder of the program's file, links followed; "" where the kernel does not say.
std::string program_folder();

}  // namespace tandem::base
