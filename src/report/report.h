// What a run reports while it runs: metrics.jsonl, memory_timeline.jsonl, TensorBoard, Weights & Biases, log.txt and
// the terminal.
//
// metrics.jsonl has one record per rollout ("rollout/step", rollout/*, perf/*), per optimizer step ("train/step",
// train/*) and per evaluation ("eval/step", eval/*), each with "time_s", seconds since the run began. fault/* is in the
// first two where something is wrong. Apart from time_s
// and perf/* two runs with one seed write the same bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/env.h"
#include "base/files.h"
#include "report/terminal.h"
#include "text/metric_sink.h"
#include "text/wandb.h"

namespace tandem::report {

using Metrics = std::map<std::string, double>;

class Report {
 public:
  // Where records go; what is empty is not written, so a verb that keeps no run writes to the terminal alone.
  // `append`: the records are added to those that are there. `keep_unwritten`: a disk that refuses a record does not
  // end the run; the record is kept, counted (fault/unwritten_records) and written when the disk takes it again.
  // `is_silent`: nothing is shown, warnings neither: another rank of the run shows the same.
  struct Options {
    std::string metrics_file = {}, log_file = {}, memory_file = {}, tensorboard_folder = {};
    std::optional<text::WandbRun> wandb = std::nullopt;
    bool append = false;
    bool keep_unwritten = false;
    bool is_silent = false;
  };
  explicit Report(const Options& options);
  Report();
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  // One record. `kind` is "rollout", "train" or "eval": the axis that `step` counts on. Names come with their prefix.
  void log(const std::string& kind, int64_t step, const Metrics& metrics);
  // Lines of memory_timeline.jsonl.
  void log_memory(const std::vector<std::string>& lines);
  // The live line: "PREFIX [####----] 128/256 UNIT"; PREFIX alone where the total is 0, because nobody knows it yet.
  void progress(const std::string& prefix, int64_t done, int64_t total, const std::string& unit);
  // A line that stays, on the terminal and in log.txt; there with the time of day, and without secrets and home
  // directory. What is too wide for the terminal goes on in a second line. With --quiet it is in log.txt alone.
  void print(const std::string& text);
  // The same for what the command was called for, which --quiet shows too: a run's last line, an evaluation's rewards.
  void print_result(const std::string& text);
  // Makes all that was written durable; before a checkpoint and at the end. EnvironmentError where the disk still
  // refuses.
  void sync();

  size_t line_columns() const { return terminal_.line_columns(); }  // of what print() takes, at most
  double seconds() const { return base::seconds_since(begin_); }    // since construction

 private:
  void write_line(const std::string& text, bool is_shown);
  void write(base::LineFile& file, const std::string& line);
  // As log.txt has it: after the time of day, without secrets and home directory.
  std::string logged(const std::string& lines) const;

  base::Clock::time_point begin_ = base::Clock::now();
  bool keep_unwritten_ = false;
  bool is_silent_ = false;
  bool is_keeping_ = false;  // and has said so
  Terminal terminal_ = standard_terminal();
  base::Redaction redaction_;
  std::unique_ptr<base::LineFile> metrics_, log_, memory_;
  std::unique_ptr<text::MetricSink> tensorboard_, wandb_;
};

// A number as a person reads it, in `digits` significant ones: "0.0494", "1.2e-07", "16,050".
std::string number_text(double value, int digits);

// Values of `metrics` that a person reads after each step, in the order of names: "reward 0.431  loss -0.0012". A name
// that is absent is left out.
std::string summary(const Metrics& metrics, const std::vector<std::pair<std::string, std::string>>& labels_and_names,
                    int digits = 4);

}  // namespace tandem::report
