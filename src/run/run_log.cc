#include "run/run_log.h"

#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "session/stop_signal.h"

namespace tandem::run {

namespace {

// config.toml comes before the records, so that whoever finds records also finds the configuration of their run.
report::Report::Options open_files(const checkpoint::RunDirectory& directory, const RunLog::Options& options) {
  if (!options.is_conductor) return {.is_silent = true};
  if (options.has_rollouts) base::make_directories(directory.samples_folder());
  base::write_file_durably(directory.config_file(), options.config_text);
  return {.metrics_file = directory.metrics_file(),
          .log_file = directory.log_file(),
          .memory_file = options.has_rollouts ? directory.memory_file() : "",
          .schedule_file = options.has_schedule ? directory.schedule_file() : "",
          .tensorboard_folder = options.use_tensorboard ? directory.tensorboard_folder() : "",
          .trackers = options.trackers,
          .append = options.resumes,
          .keep_unwritten = options.continues_after_save_error};
}

}  // namespace

RunLog::RunLog(const checkpoint::RunDirectory& directory, const Options& options)
    : continues_after_save_error_(options.continues_after_save_error),
      is_conductor_(options.is_conductor),
      report_(open_files(directory, options)) {}

void RunLog::add(const report::Metrics& metrics) {
  for (const auto& [name, value] : metrics) pending_[name] = value;
}

report::Metrics RunLog::take() { return std::exchange(pending_, {}); }

void RunLog::write_or_count(const std::string& what, const char* counter, const std::function<void()>& write) {
  try {
    write();
  } catch (const EnvironmentError& error) {
    if (!continues_after_save_error_) throw;
    pending_[counter] += 1.0;
    base::log_warning("{} could not be written, and the run continues (--on-save-error continue): {}", what,
                      error.what());
  }
}

void RunLog::write_samples(const std::string& path, std::span<const rl::Sample> samples,
                           std::span<const reward::Grade> grades, report::SampleDetail detail,
                           std::span<const std::string> sources, std::span<const std::string> token_bytes) {
  if (!is_conductor_) return;
  write_or_count(path, "fault/unwritten_samples",
                 [&] { report::write_samples(path, samples, grades, detail, sources, token_bytes); });
}

int RunLog::finish(int signal, bool is_saved, const std::string& line) {
  report_.print_result(line);
  report_.sync();
  if (signal == 0) return 0;
  return is_saved ? session::stop_exit_code(signal) : session::cut_short_exit_code(signal);
}

}  // namespace tandem::run
