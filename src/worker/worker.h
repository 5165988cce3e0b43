// One worker process and those that take its place when it is lost. One thread talks to it; stop(), process_id() and
// restarts() may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/json.h"
#include "worker/child_process.h"

namespace tandem::worker {

struct WorkerSteps {
  std::function<std::unique_ptr<ChildProcess>()> make;
  std::function<void(ChildProcess&)> load;                              // the first calls of each process
  std::function<void(const std::string& left)> warn_of_leftovers = {};  // called where make_ready() meets some
};

class Worker {
 public:
  // Makes no process yet.
  explicit Worker(WorkerSteps steps) : steps_(std::move(steps)) {}

  // Makes the first process or the next, which has loaded when this returns; there is none before. Throws what went
  // wrong, and leaves none. A process that replaces another is tried until `retry_s` have passed.
  void start(double retry_s = 0);
  // Makes sure that a process is there that lives, and in which earlier calls left nothing. Nothing may be under way.
  void make_ready(double retry_s = 0);
  // Sends a request as ChildProcess::call() does. After ChildLost there is no process.
  base::Json call(std::string_view name, const base::Json& arguments, double deadline_s);
  bool has_process() const { return child_ != nullptr; }
  bool alive() { return child_->alive(); }
  // Ends the process, if there is one.
  void drop();

  // The process is to take no other call, and ends at the next rest().
  void retire() { retiring_ = true; }
  bool is_retiring() const { return retiring_; }
  // Ends a process that retires, or begins to look for what the calls left, so that make_ready() need not wait for it.
  // Nothing may be under way. The successor of a process `is_spent`, which did all that it was made for, is no restart.
  void rest(bool is_spent = false);

  // Ends the call that is in flight, and each later one.
  void stop();
  int64_t process_id() const;  // -1 while there is none
  int64_t restarts() const;    // processes replaced so far

 private:
  void try_to_start();
  bool is_tidy();

  WorkerSteps steps_;
  mutable std::mutex mutex_;             // guards what follows, but for reads of child_ by the thread that sets it
  std::unique_ptr<ChildProcess> child_;  // set and reset under the mutex
  bool was_started_ = false;
  bool stopping_ = false;
  int64_t num_restarts_ = 0;
  // Only the thread that talks to the process reads and writes these.
  bool retiring_ = false;
  bool succeeds_spent_ = false;
};

}  // namespace tandem::worker
