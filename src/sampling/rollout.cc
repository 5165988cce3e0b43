#include "sampling/rollout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "base/check.h"
#include "sampling/failure_reward.h"

namespace tandem::sampling {

namespace {

rl::SampleStatus status_named(const std::string& name) {
  for (const auto status : {rl::SampleStatus::kTruncated, rl::SampleStatus::kAborted}) {
    if (name == rl::to_string(status)) return status;
  }
  return rl::SampleStatus::kCompleted;
}

// Applies what a slime function wrote into its sample.
void put_written(rl::Sample& sample, const reward::Grade& grade) {
  if (grade.remove_sample) sample.remove = *grade.remove_sample;
  // A token that is masked stays so: nobody sampled it.
  for (size_t i = 0; grade.loss_mask && i < sample.loss_mask.size(); ++i) sample.loss_mask[i] &= (*grade.loss_mask)[i];
  if (grade.status) sample.status = status_named(*grade.status);
}

void put_reward(rl::Sample& sample, const reward::Grade& grade) {
  if (!grade.failed) sample.reward = grade.reward;
  put_written(sample, grade);
}

}  // namespace

std::vector<const rl::Sample*> Rollout::views() const {
  std::vector<const rl::Sample*> result;
  for (const rl::Sample& sample : samples) result.push_back(&sample);
  return result;
}

void Rollout::count_failures() {
  num_failed = num_dropped = 0;
  first_failure.clear();
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].grading_failed) continue;
    if (++num_failed == 1) first_failure = fmt::format("sample {}: {}", samples[i].sample_id, grades[i].reason);
    num_dropped += samples[i].has_reward ? 0 : 1;
  }
}

void put_grades(const config::FailureReward& failure_reward, Rollout& rollout) {
  TANDEM_CHECK_EQ(rollout.grades.size(), rollout.samples.size());
  for (size_t i = 0; i < rollout.samples.size(); ++i) {
    const reward::Grade& grade = rollout.grades[i];
    TANDEM_CHECK_EQ(grade.sample_id, rollout.samples[i].sample_id, "a sample without a grade");
    put_reward(rollout.samples[i], grade);
  }
  rollout.num_unnamed = limit_reward_names(rollout.grades);
  put_failure_rewards(failure_reward, rollout.grades, rollout.samples);
  rollout.count_failures();
}

void put_model_rewards(const std::string& name, double weight, const std::vector<ModelScore>& scores,
                       const config::FailureReward& failure_reward, Rollout& rollout) {
  TANDEM_CHECK_EQ(scores.size(), rollout.samples.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    reward::Grade& grade = rollout.grades.at(i);
    const auto part = std::ranges::find(grade.parts, name, &reward::RewardPart::name);
    if (part == grade.parts.end()) continue;
    const auto fail = [&](const std::string& reason_class, const std::string& reason) {
      if (grade.failed) return;  // of several reasons the first is told
      grade.failed = true;
      grade.reward = 0.0;
      grade.reason_class = reason_class;
      grade.reason = name + ": " + reason;
    };
    if (!scores[i].reason.empty()) {
      fail(scores[i].reason_class, scores[i].reason);
      continue;
    }
    part->reward = scores[i].value;
    if (grade.failed) continue;
    grade.reward += weight * scores[i].value;
    if (std::isfinite(grade.reward)) {
      rollout.samples[i].reward = grade.reward;
    } else {
      part->reward.reset();
      fail("not_finite", "the reward with its score is no number");
    }
  }
  put_failure_rewards(failure_reward, rollout.grades, rollout.samples);
  rollout.count_failures();
}

int64_t FilteredGroups::num_dropped() const {
  int64_t count = 0;
  for (const auto& [reason, groups] : dropped) count += groups;
  return count;
}

int64_t limit_reward_names(std::vector<reward::Grade>& grades) {
  std::unordered_set<std::string> names;
  int64_t num_left_out = 0;
  const auto limit = [&](auto& named) {
    num_left_out += static_cast<int64_t>(std::erase_if(named, [&](const auto& entry) {
      if (names.contains(entry.first)) return false;
      if (names.size() >= kMaxRewardNames) return true;
      names.insert(entry.first);
      return false;
    }));
  };
  for (reward::Grade& grade : grades) {
    limit(grade.extras);
    limit(grade.metrics);
    limit(grade.columns);
  }
  return num_left_out;
}

}  // namespace tandem::sampling
