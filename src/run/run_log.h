// Writes everything that a training run leaves next to its checkpoints: records and lines (report/report.h), samples,
// and the numbers that wait for their record. An error of the disk ends the run, or is counted and reported, as
// --on-save-error says.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/run_directory.h"
#include "report/report.h"
#include "report/sample_file.h"

namespace tandem::run {

class RunLog {
 public:
  struct Options {
    std::string config_text = {};  // text of config.toml
    bool use_tensorboard = false;
    std::vector<text::SinkTarget> trackers = {};
    bool has_rollouts = true;   // true if there are samples/ and a timeline of memory
    bool has_schedule = false;  // true if the run samples while it trains
    bool resumes = false;       // true if records are added to existing ones
    bool continues_after_save_error = false;
    bool is_conductor = true;  // true on rank 0, which writes and shows everything for all ranks
  };
  // Writes config.toml and opens the records. The directory has been created; it is borrowed for the call.
  RunLog(const checkpoint::RunDirectory& directory, const Options& options);

  report::Report& report() { return report_; }
  bool is_conductor() const { return is_conductor_; }

  // Adds numbers to the record that is written next.
  void add(const report::Metrics& metrics);
  // Returns the numbers that were added since the last call.
  report::Metrics take();

  // Writes into the run directory. If the disk refuses, throws EnvironmentError; with --on-save-error continue it logs
  // a warning that names `what`, and adds one to the metric `counter` in the next record.
  void write_or_count(const std::string& what, const char* counter, const std::function<void()>& write);
  // Writes one file of samples durably, and treats errors like write_or_count().
  void write_samples(const std::string& path, std::span<const rl::Sample> samples,
                     std::span<const reward::Grade> grades, report::SampleDetail detail,
                     std::span<const std::string> sources = {}, std::span<const std::string> token_bytes = {});

  // Prints the last line; all that was written is durable when this returns. Returns the exit code of a run that
  // `signal` ended, which says whether anything can be resumed; with 0, no signal, it is 0.
  int finish(int signal, bool is_saved, const std::string& line);

 private:
  const bool continues_after_save_error_, is_conductor_;
  report::Report report_;
  report::Metrics pending_;
};

}  // namespace tandem::run
