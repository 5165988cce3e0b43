// Reads the samples of a run for `tandem view`: chooses files and samples of the folder samples/ and cuts long texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tandem::report {

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

// A text of a sample is cut to its beginning, its end, and the number of bytes between them.
constexpr size_t kTextBeginBytes = 4096, kTextEndBytes = 1024;
// The first and the last tokens of a longer response are shown.
constexpr size_t kBeginTokens = 1200, kEndTokens = 300;

// Reads the folder samples/ of a run; without such a folder there are no samples. `num_runs` is the number of runs that
// share the page, and the room for samples. Adds sentences about what is not shown to `left_out`.
std::vector<SampleSet> read_samples(const std::string& folder, size_t num_runs, std::vector<std::string>& left_out);

// Returns at most `count` of `total` indices, evenly spread, with the first and the last.
std::vector<size_t> evenly_spread(size_t total, size_t count);

}  // namespace tandem::report
