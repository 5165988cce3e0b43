// Computes the metrics of a rollout: vime's rollout/* and passrate/* and its reducer R. Names carry no prefix.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rl/rollout_signal.h"
#include "rl/sample.h"

namespace tandem::rl {

// Returns 1 for each token of the completion that is trained: the loss mask, or zeros where the sample is out of the
// loss.
std::vector<uint8_t> trained_mask(const Sample& sample);

// R(x) is 1/G sum over samples of (sum m x / max(sum m, 1)), or with `per_token` sum m x / sum over samples of max(sum
// m, 1): vime's get_sum_of_sample_mean. A sample without trained tokens adds 0 and counts, or with `count_removed` off
// is left out, as LossNormaliser has it.
class Reducer {
 public:
  explicit Reducer(bool per_token, bool count_removed = true) : per_token_(per_token), count_removed_(count_removed) {}
  // `values` has one per token of the mask, or one for all of them.
  void add(std::span<const uint8_t> mask, std::span<const float> values) { add_sample(mask, values); }
  void add(std::span<const uint8_t> mask, std::span<const double> values) { add_sample(mask, values); }
  double value() const;  // 0 without samples

 private:
  template <typename Number>
  void add_sample(std::span<const uint8_t> mask, std::span<const Number> values);

  bool per_token_, count_removed_;
  double sum_ = 0.0;
  int64_t num_samples_ = 0;
  int64_t num_tokens_ = 0;
};

// Returns metrics of the rollout's samples, which have rewards and advantages: raw_reward, rewards (the advantage of
// each sample), response_lengths, total_lengths, truncated, response_len/{mean,median,max,min} (trained tokens),
// truncated_ratio, repetition_frac, zero_std/count_{reward} (rounded to tenths), groups_without_signal,
// groups_with_equal_rewards, rollout_log_probs, ref_log_probs, advantages, and if there are any: groups_without_reward,
// failed, aborted, removed (numbers of samples). Samples without a reward stay out of raw_reward, rewards and zero_std;
// if none has one, those are absent. `signal` says which groups are without one. Samples that are out of the loss are
// so of the means over tokens: their masks are 0, and `count_removed` is LossConfig::count_removed_samples.
std::map<std::string, double> rollout_metrics(std::span<const Sample* const> samples, bool per_token,
                                              SignalOf signal = SignalOf::kAdvantages, bool count_removed = true);

// Returns true when the text's last 10,000 characters deflate to less than a tenth: a completion that repeats itself.
bool is_repetitive(std::string_view text);
// Returns the same for a text of more than 10,000 characters and false for a shorter one, which is vime's
// has_repetition.
bool has_repetition(std::string_view text);

// Returns 1 - C(n - c, k) / C(n, k): the chance that one of k samples drawn from n, c of them correct, is correct (Chen
// et al., 2021, "Evaluating Large Language Models Trained on Code", equation 1). 0 <= c <= n, 1 <= k <= n.
double pass_at_k(int64_t n, int64_t c, int64_t k);

// Records whether a sample passed. Samples that pass@k leaves out have no result.
struct PassResult {
  uint64_t group_id = 0;
  bool passed = false;
};

// Returns the mean of pass@k for k = 1, 2, 4, ... up to the largest group, over the groups with k results or more:
// "pass@1", ... A group's weight is its number of results, so that pass@1 is the share of the samples that passed. It
// is empty without results.
std::map<std::string, double> pass_rates(std::span<const PassResult> results);

}  // namespace tandem::rl
