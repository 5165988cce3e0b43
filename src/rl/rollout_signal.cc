#include "rl/rollout_signal.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "base/check.h"
#include "rl/metrics.h"

namespace tandem::rl {
namespace {

// Rewards that differ by far less than --group-epsilon have advantages that are not 0 and move no weight.
constexpr double kZeroAdvantage = 1e-6;

bool has_signal(const Sample& sample, SignalOf of) {
  if (sample.remove) return false;
  if (of == SignalOf::kEveryTrainedToken) return std::ranges::count(sample.loss_mask, 0) < std::ssize(sample.loss_mask);
  TANDEM_CHECK(sample.advantages.size() <= 1 || sample.advantages.size() == sample.loss_mask.size());
  for (size_t t = 0; t < sample.loss_mask.size() && !sample.advantages.empty(); ++t) {
    if (sample.loss_mask[t] != 0 && sample.advantages[sample.advantages.size() == 1 ? 0 : t] != 0.0) return true;
  }
  return false;
}

bool is_empty(const Sample& sample) {
  return sample.completion.empty() || sample.text.find_first_not_of(" \t\r\n\f\v") == std::string::npos;
}

void add_groups(std::span<const Sample* const> samples, RolloutStats& signal) {
  std::map<uint64_t, std::vector<const Sample*>> groups;
  for (const Sample* sample : samples) {
    if (sample->has_reward) groups[sample->group_id].push_back(sample);
  }
  for (const auto& [id, group] : groups) {
    if (group.size() < 2) continue;
    const std::vector<const Sample*>& members = group;  // clang 14 captures no structured binding
    const auto all = [&members](auto same) {
      return std::all_of(members.begin(), members.end(), [&](const Sample* s) { return same(*s, *members[0]); });
    };
    signal.num_groups += 1;
    signal.num_equal_groups += all([](const Sample& a, const Sample& b) { return a.reward == b.reward; }) ? 1 : 0;
    signal.num_identical_groups +=
        all([](const Sample& a, const Sample& b) { return a.completion == b.completion; }) ? 1 : 0;
  }
}

}  // namespace

RolloutStats measure_signal(std::span<const Sample* const> samples) {
  RolloutStats signal;
  bool has_advantages = false, has_effect = false;
  for (const Sample* sample : samples) {
    if (sample->is_given) continue;
    signal.num_samples += 1;
    const bool is_truncated = sample->status == SampleStatus::kTruncated;
    signal.num_truncated += is_truncated ? 1 : 0;
    signal.num_repetitive += is_truncated && is_repetitive(sample->text) ? 1 : 0;
    signal.num_empty += sample->status != SampleStatus::kAborted && is_empty(*sample) ? 1 : 0;
    signal.longest_tokens = std::max(signal.longest_tokens, static_cast<int64_t>(sample->completion.size()));
    signal.num_failed += sample->grading_failed ? 1 : 0;
    if (!sample->has_reward) {
      signal.num_dropped += 1;
      continue;
    }
    const bool is_first = signal.num_rewarded() == 1;
    signal.lowest_reward = is_first ? sample->reward : std::min(signal.lowest_reward, sample->reward);
    signal.highest_reward = is_first ? sample->reward : std::max(signal.highest_reward, sample->reward);
    has_advantages = has_advantages || !sample->advantages.empty();
    has_effect = has_effect || std::any_of(sample->advantages.begin(), sample->advantages.end(),
                                           [](double advantage) { return std::abs(advantage) > kZeroAdvantage; });
  }
  signal.cuts_differ = std::ranges::any_of(samples, [&signal](const Sample* sample) {
    return !sample->is_given && sample->status == SampleStatus::kTruncated &&
           std::ssize(sample->completion) < signal.longest_tokens;
  });
  signal.num_best = std::count_if(samples.begin(), samples.end(), [&signal](const Sample* sample) {
    return sample->has_reward && sample->reward == signal.highest_reward;
  });
  signal.all_advantages_zero = has_advantages && !has_effect;
  add_groups(samples, signal);
  return signal;
}

std::vector<GroupSignal> group_signals(std::span<const Sample* const> samples, SignalOf of) {
  struct Seen {
    GroupSignal signal;
    int64_t num_rewards = 0;
    double first_reward = 0.0;
    bool differs = false;
  };
  std::map<uint64_t, Seen> groups;
  for (const Sample* sample : samples) {
    if (sample->is_given) continue;
    Seen& group = groups[sample->group_id];
    group.signal.has_signal = group.signal.has_signal || has_signal(*sample, of);
    if (!sample->has_reward) continue;
    if (group.num_rewards == 0) group.first_reward = sample->reward;
    group.differs = group.differs || sample->reward != group.first_reward;
    ++group.num_rewards;
  }
  std::vector<GroupSignal> signals;
  for (auto& [id, group] : groups) {
    group.signal.group_id = id;
    group.signal.has_reward = group.num_rewards > 0;
    group.signal.has_equal_rewards = group.num_rewards > 1 && !group.differs;
    signals.push_back(group.signal);
  }
  return signals;
}

}  // namespace tandem::rl
