#include "run/run_saver.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "run/checkpoints.h"

namespace tandem::run {

RunSaver::RunSaver(const Session& session, const RunDirectory& directory, const trainer::Trainer& trainer,
                   Report& report, const CheckpointOptions& options, int64_t saved_step, State state)
    : session_(session),
      directory_(directory),
      trainer_(trainer),
      report_(report),
      goes_on_after_error_(options.goes_on_after_save_error()),
      writer_(session, directory, options.keep_latest),
      saved_step_(saved_step),
      exported_step_(base::directory_exists(directory.checkpoint(saved_step)) ? saved_step : 0),
      state_(std::move(state)) {}

void RunSaver::start(SavedParts parts) {
  std::optional<RunState> state = state_();
  if (!state || state->step == 0) return;
  const bool is_saved = state->step == saved_step_;
  if (is_saved && (parts == SavedParts::kCheckpoint || state->step == exported_step_)) return;
  if (is_saved) parts = SavedParts::kExport;
  written(fmt::format("step {}", state->step), "fault/save_errors", [&] {
    report_.sync();
    state->file_bytes = directory_.growing_files();
    writer_.start(*state, optimizer_tensors(trainer_, session_.store().layout()), parts);
  });
}

void RunSaver::finish() {
  written("a checkpoint", "fault/save_errors", [this] {
    const std::optional<CheckpointWriter::Saved> saved = writer_.wait();
    if (!saved) return;
    if (saved->parts != SavedParts::kCheckpoint) exported_step_ = saved->step;
    if (saved->parts != SavedParts::kExport) saved_step_ = saved->step;
    metrics_["perf/save_model_time"] = saved->seconds;
    metrics_["perf/save_model_wait_time"] = saved->waited_seconds;
    report_.line(fmt::format("saved {}", saved->parts == SavedParts::kExport
                                             ? directory_.checkpoint(saved->step)
                                             : Checkpoints(directory_.path()).path(saved->step)));
  });
}

void RunSaver::run(const std::function<void()>& steps) {
  try {
    steps();
  } catch (...) {
    try {
      finish();
      start(SavedParts::kBoth);
      finish();
    } catch (const std::exception& error) {
      base::log_warning("no checkpoint of the last step: {}", error.what());
    }
    throw;
  }
  finish();
  start(SavedParts::kBoth);
  finish();
  const std::optional<RunState> state = state_();
  TANDEM_ENV_CHECK(!state || state->step == saved_step_, directory_.path() + ": the last step could not be saved");
}

void RunSaver::written(const std::string& what, const char* counter, const std::function<void()>& write) {
  try {
    write();
  } catch (const EnvironmentError& error) {
    if (!goes_on_after_error_) throw;
    metrics_[counter] += 1.0;
    base::log_warning("{} could not be written, and the run goes on (--on-save-error continue): {}", what,
                      error.what());
  }
}

Metrics RunSaver::take_metrics() { return std::exchange(metrics_, {}); }

}  // namespace tandem::run
