#include "worker/worker_pool.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"

namespace tandem::worker {

WorkerPool::WorkerPool(WorkerPoolConfig config) : config_(std::move(config)), code_(config_.code) {
  const WorkerSteps steps = {.make = [this] { return code_.fork(); },
                             .load =
                                 [this](ChildProcess& child) {
                                   code_.load(child);
                                   child.note_what_belongs();
                                 },
                             .warn_of_leftovers =
                                 [this](const std::string& left) {
                                   if (!warned_.exchange(true)) config_.warn_of_leftovers(left);
                                 }};
  for (int64_t i = 0; i < config_.code.num_processes; ++i) workers_.emplace_back(steps);
}

WorkerPool::~WorkerPool() { join(); }

base::Json WorkerPool::start() {
  try {
    return code_.start();
  } catch (const WorkerError& lost) {
    const std::string& python = config_.code.python;
    TANDEM_USER_CHECK(python.empty(),
                      fmt::format("--rm-python {}: cannot run {}: {}", python, config_.what_runs, lost.what()));
    throw EnvironmentError(fmt::format("cannot start {}: {}", config_.who_runs, lost.what()));
  }
}

void WorkerPool::start_workers() {
  try {
    for (Worker& worker : workers_) worker.start();
  } catch (const WorkerError& lost) {
    throw EnvironmentError(fmt::format("cannot start {}: {}", config_.who_runs, lost.what()));
  }
}

void WorkerPool::serve(const std::function<void(size_t index)>& talk) {
  for (size_t i = 0; i < workers_.size(); ++i) threads_.emplace_back([talk, i] { talk(i); });
}

void WorkerPool::interrupt() {
  for (Worker& worker : workers_) worker.stop();
}

void WorkerPool::join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

int64_t WorkerPool::restarts() const {
  int64_t sum = 0;
  for (const Worker& worker : workers_) sum += worker.restarts();
  return sum;
}

std::vector<int64_t> WorkerPool::process_ids() const {
  std::vector<int64_t> ids;
  for (const Worker& worker : workers_) {
    if (const int64_t id = worker.process_id(); id >= 0) ids.push_back(id);
  }
  return ids;
}

}  // namespace tandem::worker
