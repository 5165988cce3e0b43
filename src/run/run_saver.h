// Saves a training run at the boundaries of its steps, one checkpoint at a time and beside the work that follows, and
// when it ends, however that comes. What the disk refuses ends the run, or is counted and said, as --on-save-error has
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "run/checkpoint_options.h"
#include "run/checkpoint_writer.h"
#include "run/report.h"
#include "run/resume.h"
#include "run/run_directory.h"
#include "run/session.h"
#include "trainer/trainer.h"

namespace tandem::run {

class RunSaver {
 public:
  // The state behind the last finished step, but for the sizes of files; nullopt within a step, when weights and data
  // cursor do not belong together.
  using State = std::function<std::optional<RunState>()>;

  // All but the options are borrowed. `saved_step`: the last that the directory has a checkpoint of.
  RunSaver(const Session& session, const RunDirectory& directory, const trainer::Trainer& trainer, Report& report,
           const CheckpointOptions& options, int64_t saved_step, State state);

  // Begins to save these parts of the last finished step, but for what of them is durable already; the weights must
  // stay as they are until finish().
  void start(SavedParts parts);
  // Waits; the step that was being saved counts as saved when this has said so.
  void finish();
  // Runs the steps and saves the last, also when they throw: a run that fails keeps what it has learnt, and the first
  // error is the one to report.
  void run(const std::function<void()>& steps);

  // Writes into the run directory. `counter` is the metric fault/... that counts what the disk refused.
  void written(const std::string& what, const char* counter, const std::function<void()>& write);

  int64_t saved_step() const { return saved_step_; }
  // perf/save_* and fault/* since the last call.
  Metrics take_metrics();

 private:
  const Session& session_;
  const RunDirectory& directory_;
  const trainer::Trainer& trainer_;
  Report& report_;
  const bool goes_on_after_error_;
  CheckpointWriter writer_;
  int64_t saved_step_;     // durable in checkpoints/
  int64_t exported_step_;  // durable in hf/
  State state_;
  Metrics metrics_;
};

}  // namespace tandem::run
