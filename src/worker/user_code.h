// The processes that run the user's Python code: a forkserver, which has imported it, and its forks, each started in
// milliseconds. As far as the kernel goes, such code reaches no network, no secret of the environment and no process of
// ours, and writes in one scratch folder alone (tandem_worker/sandbox.py).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "worker/child_process.h"
#include "worker/output_file.h"
#include "worker/sandbox.h"
#include "worker/scratch_folder.h"

namespace tandem::worker {

struct UserCodeConfig {
  std::string mode;  // the module of tandem_worker that the processes run
  WorkerConfig worker;
  std::string python;            // --rm-python: the interpreter of the code; empty: worker.python
  int64_t num_processes = 2;     // > 0
  int64_t memory_bytes = 0;      // the limit of each process
  int64_t calls_at_once = 1;     // calls that one process may have under way
  int64_t more_threads = 0;      // threads that one process may start, beside a few
  std::string output_path;       // keeps what the code prints; empty: only its last line is kept, in reasons
  int64_t max_output_bytes = 0;  // the limit of that file, which says where more was dropped
  Sandbox sandbox = Sandbox::kAuto;
  bool warn_of_missing_layers = true;
  base::Json load_arguments;  // for the call "load", in which a process imports the code
};

class UserCode {
 public:
  explicit UserCode(UserCodeConfig config);

  // Starts the forkserver. Throws what load() throws, EnvironmentError for what the machine lacks, or WorkerError.
  base::Json start();
  // Makes a process load the code, and returns what it answers about it. A fork has loaded it with the forkserver, and
  // answers at once. UserError where the code cannot be used, EnvironmentError or WorkerError.
  base::Json load(ChildProcess& child) const;
  // Forks a process that is as confined as the forkserver, which is started again where it is gone. Thread-safe.
  std::unique_ptr<ChildProcess> fork();
  const std::string& scratch_folder() const { return scratch_->path(); }

 private:
  base::Json start_locked();
  void judge(const std::vector<std::string>& missing_layers);
  std::function<void(std::string_view)> write_output();

  UserCodeConfig config_;
  std::optional<ScratchFolder> scratch_;  // the end of the forkserver and its forks removes it
  OutputFile output_;
  std::atomic<bool> warned_ = false;
  std::mutex mutex_;
  std::unique_ptr<ChildProcess> forkserver_;
};

}  // namespace tandem::worker
