// A run as its files tell it, for `tandem view`. They are read as they are, also while the run goes on or after it was
// killed; nothing is locked and nothing is changed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tandem::report {

// Where a record stands on the axes of the charts.
struct Position {
  double rollouts = 0;  // finished; of a supervised run: optimizer steps
  double seconds = 0;   // of work since the run began; the time between a stop and its resume is left out
  double tokens = 0;    // sampled so far; of a supervised run: trained on
};

// The values of one metric, in the order of the records.
struct Curve {
  std::vector<uint32_t> at;    // indices of RunFiles::positions
  std::vector<double> values;  // as many; NaN and infinite ones too
};

// A piece of a response of several turns, its long text cut.
struct ShownPiece {
  std::string from, text;  // from: "model" or "function"
  int64_t length = 0, trained_length = 0;
};

// One line of samples/, its long texts cut.
struct ShownSample {
  std::string prompt, response, label, status, failure;
  std::optional<double> reward, advantage, mean_logprob;
  int64_t group_id = 0, response_length = 0;
  int64_t num_turns = 0;
  std::vector<ShownPiece> pieces;  // those that are shown; none: sampled in one go
  size_t num_pieces = 0;           // in the file
  std::vector<std::string> marks;  // why it was chosen: "highest reward"
};

// Some samples of one file of samples/, in its order.
struct SampleSet {
  std::string file;  // "rollout_000007.jsonl"
  int64_t num_samples = 0, num_with_reward = 0;
  double mean_reward = 0.0;  // of those with a reward
  std::vector<ShownSample> samples;
};

// Bytes of one tag in one phase, as memory_timeline.jsonl has them after the last step; tag "": all at once.
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
  std::map<std::string, std::string> config;  // name and value of the options that are set, as written
  std::vector<MemoryUse> memory;
  std::vector<SampleSet> samples;
  std::string log_tail;
  std::vector<std::string> left_out;  // whole sentences: what the files hold and this does not
};

// Lines longer than this are skipped and counted.
constexpr int64_t kMaxLineBytes = int64_t{16} << 20;
// What is kept of a text of a sample: its beginning, its end, and how much is between them.
constexpr size_t kTextBeginBytes = 4096, kTextEndBytes = 1024;

// UserError: not the directory of a run, or one without a record. `num_runs`: how many runs share the page; of more
// than two, fewer samples of each are read.
RunFiles read_run(const std::string& path, size_t num_runs = 1);

// `count` of `total` places or fewer, evenly spread, with the first and the last.
std::vector<size_t> evenly_spread(size_t total, size_t count);

}  // namespace tandem::report
