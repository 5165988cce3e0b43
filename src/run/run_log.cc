#include "run/run_log.h"

#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "run/stop_signal.h"

namespace tandem::run {

namespace {

// config.toml comes before the records: who finds records finds what they are of.
const RunDirectory* with_config(const RunDirectory& directory, const RunLog::Options& options) {
  if (options.has_rollouts) base::make_directories(directory.samples_folder());
  base::write_file_durably(directory.config_file(), options.config_text);
  return &directory;
}

}  // namespace

RunLog::RunLog(const RunDirectory& directory, const Options& options)
    : continues_after_save_error_(options.continues_after_save_error),
      report_(with_config(directory, options), {.use_tensorboard = options.use_tensorboard,
                                                .memory_timeline = options.has_rollouts,
                                                .go_on = options.resumes,
                                                .keep_unwritten = options.continues_after_save_error}) {}

void RunLog::add(const Metrics& metrics) {
  for (const auto& [name, value] : metrics) pending_[name] = value;
}

Metrics RunLog::take() { return std::exchange(pending_, {}); }

void RunLog::write_or_count(const std::string& what, const char* counter, const std::function<void()>& write) {
  try {
    write();
  } catch (const EnvironmentError& error) {
    if (!continues_after_save_error_) throw;
    pending_[counter] += 1.0;
    base::log_warning("{} could not be written, and the run goes on (--on-save-error continue): {}", what,
                      error.what());
  }
}

void RunLog::write_samples(const std::string& path, std::span<const rl::Sample> samples,
                           std::span<const text::Grade> grades, SampleDetail detail) {
  write_or_count(path, "fault/unwritten_samples", [&] { run::write_samples(path, samples, grades, detail); });
}

int RunLog::finish(bool is_interrupted, const std::string& line) {
  report_.line(line);
  report_.sync();
  return is_interrupted ? stop_exit_code() : 0;
}

}  // namespace tandem::run
