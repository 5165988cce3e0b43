// Checks what the scores of a reward model make of a rollout's grades and rewards.
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <vector>

#include "sampling/rollout.h"

namespace tandem::sampling {
namespace {

// Returns a rollout of one group, whose samples have these rewards and wait for a model's part; nullopt: grading
// failed.
Rollout waiting(const std::vector<std::optional<double>>& rewards) {
  Rollout rollout;
  for (const std::optional<double>& reward : rewards) {
    const uint64_t id = rollout.samples.size();
    rl::Sample& sample = rollout.samples.emplace_back();
    reward::Grade& grade = rollout.grades.emplace_back();
    sample.sample_id = grade.sample_id = id;
    grade.parts = {{"math", reward}, {"rm_model", std::nullopt}};
    grade.failed = !reward;
    grade.reward = reward.value_or(0.0);
    if (grade.failed) grade.reason_class = "died";
  }
  put_grades({}, rollout);
  return rollout;
}

TEST(ModelRewards, AreAddedWithTheirWeight) {
  Rollout rollout = waiting({1.0, std::nullopt, 0.5});
  put_model_rewards("rm_model", -2.0, {{.value = 0.25}, {.value = 7.0}, {.value = 3.0}}, {}, rollout);
  EXPECT_EQ(rollout.samples[0].reward, 0.5);
  EXPECT_EQ(rollout.samples[2].reward, -5.5);
  EXPECT_EQ(rollout.grades[1].parts[1].reward, 7.0) << "shown, though another reward failed";
  EXPECT_EQ(rollout.samples[1].reward, -5.5) << "the lowest of the group, with its score";
  EXPECT_EQ(rollout.num_failed, 1);
}

TEST(ModelRewards, FailWhereThereIsNoScoreOrNoNumber) {
  Rollout rollout = waiting({1.0, 1.0, 1.0});
  put_model_rewards("rm_model", 1.0,
                    {{.value = 1.0},
                     {.reason_class = "too_long", .reason = "the conversation has 9 tokens"},
                     {.value = std::numeric_limits<double>::quiet_NaN()}},
                    {.drops = true, .reward = std::nullopt}, rollout);
  EXPECT_EQ(rollout.samples[0].reward, 2.0);
  EXPECT_EQ(rollout.num_dropped, 2);
  EXPECT_EQ(rollout.grades[1].reason_class, "too_long");
  EXPECT_EQ(rollout.first_failure, "sample 1: rm_model: the conversation has 9 tokens");
  EXPECT_EQ(rollout.grades[2].reason_class, "not_finite");
  EXPECT_FALSE(rollout.grades[2].parts[1].reward.has_value());
}

TEST(ModelRewards, LeaveSamplesAloneThatNoGraderWasAskedFor) {
  Rollout rollout = waiting({1.0, std::nullopt});
  rollout.grades[1].parts.clear();
  put_model_rewards("rm_model", 1.0, {{.value = 1.0}, {.value = 1.0}}, {}, rollout);
  EXPECT_TRUE(rollout.grades[1].parts.empty());
  EXPECT_TRUE(rollout.samples[1].grading_failed);
}

}  // namespace
}  // namespace tandem::sampling
