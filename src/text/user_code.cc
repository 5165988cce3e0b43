#include "text/user_code.h"

#include <fmt/ranges.h>
#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "text/sandbox_layers.h"

namespace tandem::text {

namespace {

// What each process may start, threads counted. Few, for processes that fork without end slow down all others that
// share memory with them.
constexpr int64_t kProcessesAllowed = 64;

// What each process may write in all, in memory: a share of what it may take besides.
constexpr int64_t kMinScratchBytes = int64_t{256} << 20;
constexpr int64_t kScratchShare = 4;

constexpr int kFilesPerCall = 4;

}  // namespace

UserCode::UserCode(UserCodeConfig config, std::function<base::Json(ChildProcess&)> load)
    : config_(std::move(config)), load_(std::move(load)), output_(config_.output_path, config_.max_output_bytes) {
  WorkerConfig& worker = config_.worker;
  worker.memory_bytes = config_.memory_bytes;
  worker.max_processes = kProcessesAllowed + config_.more_threads;
  worker.num_forks = static_cast<int>(config_.num_processes);
  worker.scratch_bytes = std::max(kMinScratchBytes, config_.memory_bytes / kScratchShare);
  worker.sandboxed = config_.sandbox != Sandbox::kOff;
  worker.max_open_files += int64_t{kFilesPerCall} * config_.calls_at_once;
  worker.writable.reset();
  if (config_.python.empty()) return;
  worker.python = config_.python;
  worker.python_flag = "--rm-python";
}

base::Json UserCode::start() {
  const std::lock_guard lock(mutex_);
  return start_locked();
}

base::Json UserCode::start_locked() {
  warm_parent_.reset();
  scratch_.emplace();
  if (config_.worker.sandboxed) config_.worker.writable = {scratch_->path()};
  auto started = std::make_unique<ChildProcess>(config_.worker, config_.mode, write_output());
  judge(started->missing_layers());
  base::Json found = load_(*started);
  warm_parent_ = std::move(started);
  return found;
}

std::unique_ptr<ChildProcess> UserCode::fork() {
  const std::lock_guard lock(mutex_);
  if (warm_parent_ == nullptr || !warm_parent_->alive()) start_locked();
  try {
    return std::make_unique<ChildProcess>(*warm_parent_, config_.worker, write_output());
  } catch (const WorkerError&) {
    warm_parent_.reset();
    throw;
  }
}

std::function<void(std::string_view)> UserCode::write_output() {
  return [this](std::string_view text) { output_.write(text); };
}

// What the kernel lacks is the same for every process, and said once.
void UserCode::judge(const std::vector<std::string>& missing_layers) {
  if (missing_layers.empty()) return;
  const std::string missing = fmt::format("{}", fmt::join(missing_layers, ", "));
  TANDEM_ENV_CHECK(config_.sandbox != Sandbox::kRequire, "--rm-sandbox require: this machine cannot give",
                   missing + "; use --rm-sandbox auto to go as far as it can");
  // The cheapest of layers, which costs us core dumps: no process of our user reads our memory or environment.
  ::prctl(PR_SET_DUMPABLE, 0);
  if (!config_.warn_of_missing_layers || warned_.exchange(true)) return;
  base::log_warning(
      "the sandbox of the reward code is incomplete, for this machine cannot give {}; so reward code may {} "
      "(docs/REWARDS.md; --rm-sandbox require refuses such a machine)",
      missing, what_is_open(missing_layers));
}

}  // namespace tandem::text
