// Measures how much one rollout can teach: how many completions were cut, are empty or failed in grading, in how many
// groups rewards differ, and which groups the estimator gives a signal. It is a function of the samples alone, so that
// a resumed run counts as the one that was not killed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rl/sample.h"

namespace tandem::rl {

struct RolloutStats {
  int64_t num_samples = 0;
  int64_t num_failed = 0;      // samples whose grading failed
  int64_t num_dropped = 0;     // failed samples without a reward
  int64_t num_truncated = 0;   // cut by a length limit
  int64_t num_empty = 0;       // only white space, or no token
  int64_t num_repetitive = 0;  // truncated and repetitive: is_repetitive()
  int64_t longest_tokens = 0;  // tokens of the longest completion
  bool cuts_differ = false;    // some completion was cut at fewer tokens than that

  // The next counts are over samples with a reward. A group takes part when it has two of them.
  int64_t num_groups = 0;
  int64_t num_equal_groups = 0;      // all rewards are the same number
  int64_t num_identical_groups = 0;  // all completions are the same tokens
  double lowest_reward = 0.0, highest_reward = 0.0;
  int64_t num_best = 0;              // samples with the highest reward
  bool all_advantages_zero = false;  // there are advantages and all are 0

  int64_t num_rewarded() const { return num_samples - num_dropped; }
  bool all_failed() const { return num_samples > 0 && num_failed == num_samples; }
  bool all_rewards_equal() const { return num_rewarded() >= 2 && lowest_reward == highest_reward; }
  bool all_groups_equal() const { return num_groups > 0 && num_equal_groups == num_groups; }
};

// `samples` have rewards and advantages; groups are told apart by group_id.
RolloutStats measure_signal(std::span<const Sample* const> samples);

// Names the tokens that have a signal: trained ones with an advantage other than 0, or, where a term of the loss reads
// no advantage (distillation of whole distributions), every trained token.
enum class SignalOf : uint8_t { kAdvantages, kEveryTrainedToken };

// Tells whether one group has a signal.
struct GroupSignal {
  uint64_t group_id = 0;
  bool has_reward = false;         // at least one sample has a reward
  bool has_equal_rewards = false;  // two or more samples have a reward, and all rewards are equal
  // True if a token has a signal. Of advantages, that is what the estimator means by it: equal rewards have none if it
  // subtracts the group's mean; if it does not, or whitens over the rollout, they may have one.
  bool has_signal = false;
};

// Returns the signals by group_id, ascending. `samples` have rewards and advantages.
std::vector<GroupSignal> group_signals(std::span<const Sample* const> samples, SignalOf of);

}  // namespace tandem::rl
