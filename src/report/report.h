// Writes the records of a run while it runs: metrics.jsonl, memory_timeline.jsonl, schedule.jsonl, TensorBoard,
// experiment trackers, log.txt and the terminal.
//
// metrics.jsonl has one record per rollout ("rollout/step", rollout/*, perf/*), per optimizer step ("train/step",
// train/*) and per evaluation ("eval/step", eval/*), each with "time_s", seconds since the run began. fault/* is in the
// first two if a fault holds. Apart from time_s and perf/* two runs with one seed write the same bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/env.h"
#include "base/files.h"
#include "report/terminal.h"
#include "text/metric_sink.h"

namespace tandem::report {

using Metrics = std::map<std::string, double>;

class Report {
 public:
  // Holds the destinations of records; an empty one is not written, so a verb that keeps no run writes to the terminal
  // alone. `append` adds the records to those that are there. With `keep_unwritten` a disk that refuses a record does
  // not end the run; the record is kept, counted (fault/unwritten_records) and written when the disk takes it again.
  // With `is_silent` nothing is shown, not even warnings: another rank of the run shows the same.
  struct Options {
    std::string metrics_file = {}, log_file = {}, memory_file = {}, schedule_file = {}, tensorboard_folder = {};
    std::vector<text::SinkTarget> trackers = {};  // each has an axis of its own for each kind of record
    bool append = false;
    bool keep_unwritten = false;
    bool is_silent = false;
  };
  explicit Report(const Options& options);
  Report();
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  // Writes one record. `kind` is "rollout", "train" or "eval": the axis that `step` counts on. Names come with their
  // prefix.
  void log(const std::string& kind, int64_t step, const Metrics& metrics);
  // Writes lines of memory_timeline.jsonl.
  void log_memory(const std::vector<std::string>& lines);
  // Writes a line of schedule.jsonl, which is durable when this returns, unless it is kept.
  void log_schedule(const std::string& line);
  // Shows the live line: "PREFIX [####----] 128/256 UNIT"; PREFIX alone if the total is 0, because it is not known yet.
  void progress(const std::string& prefix, int64_t done, int64_t total, const std::string& unit);
  // Prints a line that stays, on the terminal and in log.txt; there with the time of day, and without secrets and home
  // directory. A line too wide for the terminal continues in a second one. With --quiet it is in log.txt alone.
  void print(const std::string& text);
  // Does the same for the results of the command, which --quiet shows too: a run's last line, an evaluation's rewards.
  void print_result(const std::string& text);
  // Writes a line to log.txt alone, for what the program shows when it ends.
  void note(const std::string& text) { write_line(text, /*is_shown=*/false); }
  // Makes everything written so far durable; it is called before a checkpoint and at the end. Throws EnvironmentError
  // if the disk still refuses.
  void sync();

  size_t line_columns() const { return terminal_.line_columns(); }  // columns that print() takes at most
  double seconds() const { return base::seconds_since(begin_); }    // since construction

 private:
  void write_line(const std::string& text, bool is_shown);
  void write(base::LineFile& file, const std::string& line);
  // Returns the lines for log.txt: after the time of day, without secrets and home directory.
  std::string logged(const std::string& lines) const;

  base::Clock::time_point begin_ = base::Clock::now();
  bool keep_unwritten_ = false;
  bool is_silent_ = false;
  bool is_keeping_ = false;  // records are being kept, and a warning told so
  Terminal terminal_ = standard_terminal();
  base::Redaction redaction_;
  std::unique_ptr<base::LineFile> metrics_, log_, memory_, schedule_;
  std::unique_ptr<text::MetricSink> tensorboard_;
  std::vector<std::unique_ptr<text::MetricSink>> trackers_;
};

// Formats a number as a person reads it, with `digits` significant digits: "0.0494", "1.2e-07", "16,050".
std::string number_text(double value, int digits);

// Returns the values of `metrics` that a person reads after each step, in the order of names: "reward 0.431  loss
// -0.0012". An absent name is left out.
std::string summary(const Metrics& metrics, const std::vector<std::pair<std::string, std::string>>& labels_and_names,
                    int digits = 4);

}  // namespace tandem::report
