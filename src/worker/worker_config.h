// The settings by which a Python worker process (python/tandem_worker) is started and confined, and the error of a call
// that lost it.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "worker/sandbox.h"

namespace tandem::worker {

// Thrown by a call that lost its worker (died, deadline, protocol). The message says what happened to the process.
class WorkerError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct WorkerConfig {
  std::string python;            // the interpreter
  std::string python_flag;       // the flag by which the user named `python`, and is at fault; empty: we named it
  std::string worker_directory;  // holds tandem_worker/
  double deadline_s = 60.0;      // the limit of one call
  // tandem_worker/sandbox/sandbox.py sets these limits of the child.
  int64_t memory_bytes = int64_t{4} << 30;  // what each process has for itself; code of libraries is not counted
  int64_t max_reply_bytes = int64_t{256} << 20;
  int64_t max_reply_values = int64_t{1} << 26;
  int64_t max_file_bytes = int64_t{1} << 30;  // the limit of one file that it writes
  int64_t max_open_files = 256;
  int64_t max_processes = 256;  // it and all that it starts, threads included
  int num_forks = 0;            // workers that a forkserver is to have at a time
  int64_t scratch_bytes =
      int64_t{256} << 20;  // the limit of all that it writes, where the kernel gives it a folder of its own
  // A sandboxed worker has no network and few environment variables, and changes files in `writable` alone (none:
  // nowhere; nullopt: anywhere). In the sandbox or not, the first of these folders is where its temporary files go.
  bool sandboxed = true;
  bool network = false;  // a sandboxed worker that asks a service may open internet sockets
  // A sandboxed worker may open TCP sockets over IPv4 in a network of its own, in which nobody else is.
  bool loopback = false;
  std::optional<std::vector<std::string>> writable = std::vector<std::string>{};
  // In the sandbox or not, the worker sees the environment variables of kKeptVariables (worker/child_environment.h) and
  // these. A name that ends in '*' stands for all that begin so. nullopt: as `sandboxed` says.
  std::optional<std::vector<std::string>> variables = std::nullopt;
};
// Returns a configuration with the interpreter and the package beside the program (worker/worker_place.h).
// EnvironmentError where one is missing.
WorkerConfig default_worker_config();

// The settings by which the user's Python code is run.
struct UserCodeConfig {
  WorkerConfig worker;
  std::string code_flag, code_path;  // "--custom-rm-path" and its FILE.py:function, for errors; empty: the code is ours
  std::string python;                // --rm-python: the interpreter of the code; empty: worker.python
  std::string output_path;           // keeps what the code prints; empty: only its last line is kept, in reasons
  int64_t max_output_bytes = int64_t{16} << 20;  // the limit of that file, which says where more was dropped
  Sandbox sandbox = Sandbox::kAuto;
  bool warn_of_missing_layers = true;
};

}  // namespace tandem::worker
