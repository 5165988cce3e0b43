// Worker processes that run the user's code, each with a thread of ours that talks to it.
//
// The pool owns the forkserver, a process that has imported the code, and the workers that it forks. It starts them,
// replaces those that are lost, counts the restarts, looks whether calls left something behind, and ends all of them.
// What the workers are asked, and what becomes of calls that a lost one had under way, is the business of the pool's
// user: of Graders and of Generators.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "worker/user_code.h"
#include "worker/worker.h"

namespace tandem::worker {

struct WorkerPoolConfig {
  UserCodeConfig code;
  std::string what_runs;  // in errors: "reward code"
  std::string who_runs;   // in errors: "the graders"
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
  // Starts all workers; otherwise each is started when its thread first makes it ready. EnvironmentError as above.
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
  std::vector<int64_t> process_ids() const;  // of the workers that run
  const std::string& scratch_folder() const { return code_.scratch_folder(); }

 private:
  WorkerPoolConfig config_;
  UserCode code_;
  std::atomic<bool> warned_ = false;
  std::deque<Worker> workers_;
  std::vector<std::thread> threads_;
};

}  // namespace tandem::worker
