// Reads a run from its files, for `tandem view`. They are read as they are, also while the run continues or after it
// was killed; nothing is locked and nothing is changed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

// Holds a token of a response, in a run whose tokens have advantages of their own.
struct ShownToken {
  std::string text;
  std::optional<double> advantage, logprob;  // none: not trained on; not the model's
};

// Holds a piece of a response of several turns, whose long text is cut.
struct ShownPiece {
  std::string from, text;  // from: "model" or "function"
  int64_t length = 0, trained_length = 0;
  std::vector<ShownToken> tokens = {};  // none: the text is shown
};

// Holds one line of samples/, whose long texts are cut.
struct ShownSample {
  std::string prompt, response, label, status, failure;
  std::optional<double> reward, advantage, mean_logprob;
  int64_t group_id = 0, response_length = 0;
  int64_t num_turns = 0;
  bool is_given = false;           // the data's answer, or a teacher's: the model did not sample it
  std::vector<ShownPiece> pieces;  // shown pieces; empty: sampled in one go
  size_t num_pieces = 0;           // number in the file
  std::vector<ShownToken> tokens;  // the response's first and last ones; none: the text is shown, or the pieces
  size_t num_begin_tokens = 0;     // so many of `tokens` come before those that are left out
  size_t num_tokens = 0;           // number in the file
  std::vector<std::string> marks;  // reasons why it was chosen: "highest reward"
};

// Holds some samples of one file of samples/, in its order.
struct SampleSet {
  std::string file;  // "rollout_000007.jsonl"
  int64_t num_samples = 0, num_with_reward = 0, num_given = 0;
  double mean_reward = 0.0;        // mean over samples with a reward
  double largest_advantage = 0.0;  // the greatest absolute value over all samples and tokens
  std::vector<ShownSample> samples;
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

// Longer lines are skipped and counted.
constexpr int64_t kMaxLineBytes = int64_t{16} << 20;
// A text of a sample is cut to its beginning, its end, and the number of bytes between them.
constexpr size_t kTextBeginBytes = 4096, kTextEndBytes = 1024;
// The first and the last tokens of a longer response are shown.
constexpr size_t kBeginTokens = 1200, kEndTokens = 300;

// Reads a run. Throws UserError if `path` is not the directory of a run, or one without a record. `num_runs` is the
// number of runs that share the page, and the room for samples.
RunFiles read_run(const std::string& path, size_t num_runs = 1);

// Returns at most `count` of `total` indices, evenly spread, with the first and the last.
std::vector<size_t> evenly_spread(size_t total, size_t count);

}  // namespace tandem::report
