// Worker processes that run the user's code, each with a thread of ours that talks to it.
//
// The pool owns the forkserver, a process that has imported the code, and the workers that it forks, each in
// milliseconds. It starts them, replaces those that are lost, counts the restarts, looks whether calls left something
// behind, and ends all of them. What the workers are asked, and what becomes of calls that a lost one had under way, is
// the business of the pool's user: of Graders and of Generators. As far as the kernel goes, the code reaches no
// network, no secret of the environment and no process of ours, and writes in one scratch folder alone
// (tandem_worker/sandbox/sandbox.py).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "worker/output_file.h"
#include "worker/scratch_folder.h"
#include "worker/worker.h"
#include "worker/worker_config.h"

namespace tandem::worker {

struct WorkerPoolConfig {
  std::string mode;  // the module of tandem_worker that the processes run
  UserCodeConfig code;
  base::Json load_arguments;  // for the call "load", in which a process imports the code; the pool adds "sandboxed"
  int64_t num_processes = 2;  // > 0
  int64_t memory_bytes = 0;   // the limit of each process
  int64_t calls_at_once = 1;  // calls that one process may have under way
  int64_t more_threads = 0;   // threads that one process may start, beside a few
  std::string what_runs;      // in errors: "reward code"
  std::string who_runs;       // in errors: "the graders"
  // Logs the first time that a call left something behind: "a running process", ...
  std::function<void(const std::string& left)> warn_of_leftovers;
};

class WorkerPool {
 public:
  explicit WorkerPool(WorkerPoolConfig config);
  ~WorkerPool();

  // Starts the forkserver, and returns what it answers about the code that it has loaded. UserError when the code
  // cannot be used, EnvironmentError for what the machine lacks.
  base::Json start();
  // Starts all workers; otherwise each is started when its thread first makes it ready. EnvironmentError for what
  // the machine lacks.
  void start_workers();
  size_t size() const { return workers_.size(); }
  Worker& worker(size_t index) { return workers_[index]; }
  // Starts a thread for each worker, in which `talk` runs; only that thread talks to it. `talk` throws nothing.
  void serve(const std::function<void(size_t index)>& talk);
  // Ends all calls, those under way and later ones. The threads see it in their next call.
  void interrupt();
  // Waits for the threads, which their `talk` has to end.
  void join();

  int64_t restarts() const;
  std::vector<int64_t> process_ids() const;  // the workers that run
  const std::string& scratch_folder() const { return scratch_->path(); }

 private:
  base::Json start_forkserver();  // the caller has the lock
  // Forks a process that is as confined as the forkserver, which is started again where it is gone.
  std::unique_ptr<ChildProcess> fork();
  // Makes a process load the code, and returns what it answers about it. A fork has loaded it with the forkserver.
  base::Json load(ChildProcess& child) const;
  void judge(const std::vector<std::string>& missing_layers);
  std::function<void(std::string_view)> write_output();

  WorkerPoolConfig config_;
  OutputFile output_;
  std::atomic<bool> warned_of_layers_ = false, warned_of_leftovers_ = false;
  std::mutex mutex_;                      // guards the scratch folder and the forkserver
  std::optional<ScratchFolder> scratch_;  // the end of the forkserver and its forks removes it
  std::unique_ptr<ChildProcess> forkserver_;
  std::deque<Worker> workers_;
  std::vector<std::thread> threads_;
};

}  // namespace tandem::worker
