#include "worker/worker_config.h"

#include "base/env.h"
#include "base/program_folder.h"
#include "worker/worker_place.h"

namespace tandem::worker {

WorkerConfig default_worker_config() {
  const std::string launcher_python = base::launcher_python();
  const WorkerPlace place =
      find_worker(base::program_folder(),
                  {.root = TANDEM_ROOT, .python = launcher_python.empty() ? TANDEM_PYTHON : launcher_python});
  WorkerConfig config;
  config.python = place.python;
  config.worker_directory = place.directory;
  return config;
}

}  // namespace tandem::worker
