// Finds the workers' interpreter and their package beside the program, so that a clone can be moved and the program
// copied with its folder.
#pragma once

#include <string>

namespace tandem::worker {

struct WorkerPlace {
  std::string python;     // the interpreter
  std::string directory;  // holds tandem_worker/
};

// These are the build's own paths of both. `python` is empty where nobody named one: it is then ROOT/.venv/bin/python.
struct BuildPlace {
  std::string root;  // the repository; empty in a wheel, which has all beside the program
  std::string python;
};

// Looks from the program's folder upwards for python/tandem_worker, and at last in the repository of the build; .venv
// lies beside it. EnvironmentError names the folders where one of them was looked for in vain.
WorkerPlace find_worker(const std::string& program_folder, const BuildPlace& build);

}  // namespace tandem::worker
