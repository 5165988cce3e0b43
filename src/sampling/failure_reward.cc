#include "sampling/failure_reward.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace tandem::sampling {

std::optional<double> failure_reward_among(const config::FailureReward& policy, std::span<const reward::Grade> grades) {
  double lowest = 0.0;
  bool is_any_graded = false;
  for (const reward::Grade& grade : grades) {
    if (grade.failed) continue;
    is_any_graded = true;
    lowest = std::min(lowest, grade.reward);
  }
  if (!is_any_graded || policy.drops) return std::nullopt;
  return policy.reward.value_or(lowest);
}

void put_failure_rewards(const config::FailureReward& policy, std::span<const reward::Grade> grades,
                         std::span<rl::Sample> samples) {
  TANDEM_CHECK_EQ(grades.size(), samples.size());
  // Nobody graded the samples that were given.
  std::vector<reward::Grade> asked;
  const bool has_given = std::ranges::find(samples, true, &rl::Sample::is_given) != samples.end();
  for (size_t i = 0; has_given && i < samples.size(); ++i) {
    if (!samples[i].is_given) asked.push_back(grades[i]);
  }
  const std::optional<double> among_all =
      failure_reward_among(policy, has_given ? std::span<const reward::Grade>(asked) : grades);
  for (size_t begin = 0, end = 0; begin < samples.size(); begin = end) {
    while (end < samples.size() && samples[end].group_id == samples[begin].group_id) ++end;
    std::optional<double> reward = failure_reward_among(policy, grades.subspan(begin, end - begin));
    if (!reward) reward = among_all;
    for (size_t i = begin; i < end; ++i) {
      if (!grades[i].failed) continue;
      rl::Sample& sample = samples[i];
      sample.grading_failed = true;
      sample.has_reward = reward.has_value() && !grades[i].gives_none();
      sample.reward = sample.has_reward ? *reward : 0.0;
      if (!sample.has_reward) sample.remove = true;
    }
  }
}

}  // namespace tandem::sampling
