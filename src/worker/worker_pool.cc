#include "worker/worker_pool.h"

#include <fmt/ranges.h>
#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "worker/sandbox_layers.h"

namespace tandem::worker {
namespace {

// Each process may start so many, threads counted. They are few, for processes that fork without end slow down all
// others that share memory with them.
constexpr int64_t kProcessesAllowed = 64;

// Each process may write so much in all, in memory: a share of what it may take besides.
constexpr int64_t kMinScratchBytes = int64_t{256} << 20;
constexpr int64_t kScratchShare = 4;

constexpr int kFilesPerCall = 4;

}  // namespace

WorkerPool::WorkerPool(WorkerPoolConfig config)
    : config_(std::move(config)), output_(config_.code.output_path, config_.code.max_output_bytes) {
  const UserCodeConfig& code = config_.code;
  WorkerConfig& worker = config_.code.worker;
  worker.memory_bytes = config_.memory_bytes;
  worker.max_processes = kProcessesAllowed + config_.more_threads;
  worker.num_forks = static_cast<int>(config_.num_processes);
  worker.scratch_bytes = std::max(kMinScratchBytes, config_.memory_bytes / kScratchShare);
  worker.sandboxed = code.sandbox != Sandbox::kOff;
  worker.max_open_files += int64_t{kFilesPerCall} * config_.calls_at_once;
  worker.writable.reset();
  if (!code.python.empty()) {
    worker.python = code.python;
    worker.python_flag = "--rm-python";
  }
  config_.load_arguments["sandboxed"] = worker.sandboxed;
  const WorkerSteps steps = {.make = [this] { return fork(); },
                             .load =
                                 [this](ChildProcess& child) {
                                   load(child);
                                   child.note_what_belongs();
                                 },
                             .warn_of_leftovers =
                                 [this](const std::string& left) {
                                   if (!warned_of_leftovers_.exchange(true)) config_.warn_of_leftovers(left);
                                 }};
  for (int64_t i = 0; i < config_.num_processes; ++i) workers_.emplace_back(steps);
}

WorkerPool::~WorkerPool() { join(); }

base::Json WorkerPool::start() {
  const std::lock_guard lock(mutex_);
  try {
    return start_forkserver();
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

base::Json WorkerPool::start_forkserver() {
  forkserver_.reset();
  scratch_.emplace();
  WorkerConfig& worker = config_.code.worker;
  worker.writable = {scratch_->path()};
  auto started = std::make_unique<ChildProcess>(worker, config_.mode, write_output());
  judge(started->missing_layers());
  base::Json found = load(*started);
  forkserver_ = std::move(started);
  return found;
}

base::Json WorkerPool::load(ChildProcess& child) const {
  try {
    return child.call("load", config_.load_arguments, config_.code.worker.deadline_s);
  } catch (const EnvironmentError& lacking) {  // a package, which another interpreter than ours may lack
    TANDEM_USER_CHECK(config_.code.python.empty(),
                      fmt::format("--rm-python {}: {}", config_.code.python, lacking.what()));
    throw;
  } catch (const ChildLost& lost) {
    // A file that hangs is its author's, and so is one that is slow on a slow machine.
    const UserCodeConfig& code = config_.code;
    TANDEM_USER_CHECK(
        lost.cause() != LossCause::kDeadline || code.code_path.empty(),
        fmt::format("{} {}: importing {} took longer than {:g} s: let the function do what takes so long, "
                    "in place of the top level of its file",
                    code.code_flag, code.code_path, code.code_path.substr(0, code.code_path.rfind(':')),
                    code.worker.deadline_s));
    throw;
  }
}

std::unique_ptr<ChildProcess> WorkerPool::fork() {
  const std::lock_guard lock(mutex_);
  if (forkserver_ == nullptr || !forkserver_->alive()) start_forkserver();
  try {
    return std::make_unique<ChildProcess>(*forkserver_, config_.code.worker, write_output());
  } catch (const WorkerError&) {
    forkserver_.reset();
    throw;
  }
}

std::function<void(std::string_view)> WorkerPool::write_output() {
  return [this](std::string_view text) { output_.write(text); };
}

// The kernel lacks the same for every process, so it is said once.
void WorkerPool::judge(const std::vector<std::string>& missing_layers) {
  if (missing_layers.empty()) return;
  const std::string missing = fmt::format("{}", fmt::join(missing_layers, ", "));
  TANDEM_ENV_CHECK(config_.code.sandbox != Sandbox::kRequire, "--rm-sandbox require: this machine cannot give",
                   missing + "; use --rm-sandbox auto to go as far as it can");
  // This is the cheapest of layers, and costs us core dumps: no process of our user reads our memory or environment.
  ::prctl(PR_SET_DUMPABLE, 0);
  if (!config_.code.warn_of_missing_layers || warned_of_layers_.exchange(true)) return;
  base::log_warning(
      "the sandbox of the reward code is incomplete, for this machine cannot give {}; so reward code may {} "
      "(docs/REWARDS.md; --rm-sandbox require refuses such a machine)",
      missing, what_is_open(missing_layers));
}

}  // namespace tandem::worker
