// What a training run writes beside its checkpoints, and how it ends: records and lines (run/report.h), samples, and
// the numbers that wait for their record. What the disk refuses ends the run, or is counted and said, as
// --on-save-error has it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "checkpoint/run_directory.h"
#include "report/report.h"
#include "report/sample_file.h"

namespace tandem::run {

class RunLog {
 public:
  struct Options {
    std::string config_text = {};  // of config.toml
    bool use_tensorboard = false;
    std::optional<text::WandbRun> wandb = std::nullopt;
    bool has_rollouts = true;  // there are samples/ and a timeline of memory
    bool resumes = false;      // records are added to those that are there
    bool continues_after_save_error = false;
    bool is_conductor = true;  // else nothing is written or shown: the conductor does that for all ranks
  };
  // Writes config.toml and opens the records. The directory has been created; it is borrowed for
  // the call.
  RunLog(const checkpoint::RunDirectory& directory, const Options& options);

  report::Report& report() { return report_; }
  bool is_conductor() const { return is_conductor_; }

  // Numbers of the record that is written next.
  void add(const report::Metrics& metrics);
  // Those that were added since the last call.
  report::Metrics take();

  // Writes into the run directory. A disk that refuses: EnvironmentError, or with --on-save-error continue a warning
  // that names `what`, and one more of the metric `counter` in the next record.
  void write_or_count(const std::string& what, const char* counter, const std::function<void()>& write);
  // One file of samples, durably, by the same rule.
  void write_samples(const std::string& path, std::span<const rl::Sample> samples,
                     std::span<const reward::Grade> grades, report::SampleDetail detail,
                     std::span<const std::string> sources = {});

  // The last line; all that was written is durable behind it. Returns the exit code of a run that a signal ended, or 0.
  int finish(bool is_interrupted, const std::string& line);

 private:
  const bool continues_after_save_error_, is_conductor_;
  report::Report report_;
  report::Metrics pending_;
};

}  // namespace tandem::run
