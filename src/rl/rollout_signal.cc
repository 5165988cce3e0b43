#include "rl/rollout_signal.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "rl/metrics.h"

namespace tandem::rl {
namespace {

// Equal rewards leave rounding in their advantages: an ulp of the mean, divided by --group-epsilon 1e-6 and once more
// by 1e-4 where they are whitened. What is smaller moves no weight.
constexpr double kZeroAdvantage = 1e-6;

bool is_empty(const Sample& sample) {
  return sample.completion.empty() || sample.text.find_first_not_of(" \t\r\n\f\v") == std::string::npos;
}

void add_groups(std::span<const Sample* const> samples, RolloutSignal& signal) {
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

RolloutSignal measure_signal(std::span<const Sample* const> samples) {
  RolloutSignal signal;
  bool has_advantages = false, has_signal = false;
  for (const Sample* sample : samples) {
    signal.num_samples += 1;
    const bool is_truncated = sample->status == SampleStatus::kTruncated;
    signal.num_truncated += is_truncated ? 1 : 0;
    signal.num_repetitive += is_truncated && is_repetitive(sample->text) ? 1 : 0;
    signal.num_empty += is_empty(*sample) ? 1 : 0;
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
    has_signal = has_signal || std::any_of(sample->advantages.begin(), sample->advantages.end(),
                                           [](double advantage) { return std::abs(advantage) > kZeroAdvantage; });
  }
  signal.num_best = std::count_if(samples.begin(), samples.end(), [&signal](const Sample* sample) {
    return sample->has_reward && sample->reward == signal.highest_reward;
  });
  signal.all_advantages_zero = has_advantages && !has_signal;
  add_groups(samples, signal);
  return signal;
}

}  // namespace tandem::rl
