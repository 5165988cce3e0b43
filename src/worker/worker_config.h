// How a Python worker process (python/tandem_worker) is started and confined, and the error of a call that lost it.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace tandem::worker {

// A call that lost its worker (died, deadline, protocol). The message says what happened to the process.
class WorkerError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct WorkerConfig {
  std::string python;            // interpreter
  std::string python_flag;       // the flag that named `python`, whose value is the user's fault; empty: ours
  std::string worker_directory;  // holds tandem_worker/
  double deadline_s = 60.0;      // of one call
  // Limits of the child; tandem_worker/sandbox.py sets them.
  int64_t memory_bytes = int64_t{4} << 30;  // what each process has for itself; code of libraries is not counted
  int64_t max_reply_bytes = int64_t{256} << 20;
  int64_t max_reply_values = int64_t{1} << 26;
  int64_t max_file_bytes = int64_t{1} << 30;  // of one file that it writes
  int64_t max_open_files = 256;
  int64_t max_processes = 256;  // it and all that it starts, threads included
  int num_forks = 0;            // of a warm parent: how many workers it is to fork at a time
  int64_t scratch_bytes =
      int64_t{256} << 20;  // of what it writes in all, where the kernel gives it a folder of its own
  // No network, few environment variables, files changed in `writable` alone (none: nowhere; nullopt: anywhere).
  bool sandboxed = true;
  bool network = false;  // sandboxed, but for internet sockets: of a worker that asks a service
  std::optional<std::vector<std::string>> writable = std::vector<std::string>{};
  // In the sandbox or not, the environment variables of kKeptVariables (text/child_environment.h) and these. A name
  // that ends in '*' stands for all that begin so. nullopt: as `sandboxed` says.
  std::optional<std::vector<std::string>> variables = std::nullopt;
};
// With the interpreter and the package beside the program (text/worker_place.h); EnvironmentError where one is missing.
WorkerConfig default_worker_config();

}  // namespace tandem::worker
