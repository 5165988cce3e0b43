// Reads a run from its files, for `tandem view`. They are read as they are, also while the run continues or after it
// was killed; nothing is locked and nothing is changed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "report/run_samples.h"

namespace tandem::report {

// Holds the position of a record on the axes of the charts.
struct Position {
  double rollouts = 0;  // finished; in a supervised run: optimizer steps
  double seconds = 0;   // seconds of work since the run began, without the time between a stop and its resume
  double tokens = 0;    // sampled so far; in a supervised run: trained on
};

// Holds the values of one metric, in the order of the records.
struct Curve {
  std::vector<uint32_t> at;    // indices of RunFiles::positions
  std::vector<double> values;  // one for each of `at`; may be NaN or infinite
};

// Holds the bytes of one tag in one phase, as memory_timeline.jsonl has them after the last step; the tag "" stands for
// all at once.
struct MemoryUse {
  std::string phase, tag;
  int64_t measured_bytes = 0, planned_bytes = 0;
};

struct RunFiles {
  std::string path;
  bool has_rollouts = false;  // false: supervised training
  std::vector<Position> positions;
  std::map<std::string, Curve> curves;  // by the metric's name; without the steps and time_s
  std::string config_text;
  std::map<std::string, std::string> config;  // names and values of the options that are set, as written
  std::vector<MemoryUse> memory;
  std::vector<SampleSet> samples;
  std::string log_tail;
  std::vector<std::string> left_out;  // whole sentences about data of the files that is missing here
};

// Reads a run. Throws UserError if `path` is not the directory of a run, or one without a record. `num_runs` is the
// number of runs that share the page, and the room for samples.
RunFiles read_run(const std::string& path, size_t num_runs = 1);

}  // namespace tandem::report
