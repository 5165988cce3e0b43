// Tests of the reward of samples whose grading failed: --rm-failure-reward, by reward and by whose fault it was.
#include "sampling/failure_reward.h"

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "config/reward_options.h"
#include "tandem/error.h"

namespace tandem::sampling {
namespace {

reward::Grade graded(double reward) {
  reward::Grade grade;
  grade.reward = reward;
  return grade;
}

reward::Grade failed(const std::string& reason_class) {
  reward::Grade grade;
  grade.failed = true;
  grade.reason_class = reason_class;
  return grade;
}

std::vector<rl::Sample> given(const config::FailureReward& policy, const std::vector<reward::Grade>& grades) {
  std::vector<rl::Sample> samples(grades.size());
  for (size_t i = 0; i < grades.size(); ++i) samples[i].reward = grades[i].reward;
  put_failure_rewards(policy, grades, samples);
  return samples;
}

config::RewardOptions options(const std::string& failure_reward, const std::string& rm_type = "") {
  config::RewardOptions options;
  options.failure_reward = failure_reward;
  if (rm_type.empty()) {
    options.custom_rm_path = {"reward.py:reward"};
  } else {
    options.rm_type = {rm_type};
  }
  return options;
}

TEST(FailureReward, LowestIsTheLowestThatWasGradedOrZero) {
  const config::FailureReward lowest = options("lowest").failure();
  EXPECT_EQ(given(lowest, {graded(-2), failed("exception"), graded(3)})[1].reward, -2.0);
  EXPECT_EQ(given(lowest, {graded(5), failed("exception"), graded(3)})[1].reward, 0.0);
  EXPECT_EQ(given(options("lowest", "dapo").failure(), {graded(1), failed("deadline")})[1].reward, -1.0);
  EXPECT_EQ(given(options("lowest", "exact").failure(), {graded(1), failed("deadline")})[1].reward, 0.0);
  EXPECT_EQ(given(options("lowest", "math").failure(), {graded(1), failed("deadline")})[1].reward, 0.0);
}

// A filter sees one group when it judges it; what training gives must not depend on the other groups either.
TEST(FailureReward, IsTheSameToAFilterAndToTraining) {
  const config::FailureReward lowest = options("lowest").failure();
  const std::vector<reward::Grade> grades = {graded(-0.2),        failed("exception"), graded(-3),     graded(2),
                                             failed("exception"), graded(1),           failed("died"), failed("died")};
  std::vector<rl::Sample> samples(grades.size());
  for (size_t i = 0; i < grades.size(); ++i) samples[i].group_id = 7 + i / 2;
  put_failure_rewards(lowest, grades, samples);
  for (const size_t i : {1U, 4U}) {
    const std::span<const reward::Grade> group = std::span(grades).subspan(i / 2 * 2, 2);
    EXPECT_EQ(samples[i].reward, failure_reward_among(lowest, group)) << i;
  }
  EXPECT_EQ(samples[1].reward, -0.2) << "the lowest of its group, not -3";
  EXPECT_EQ(samples[4].reward, 0.0);
  // No filter is asked about a group that failed as a whole; without a baseline 0 would be more than a wrong answer
  // has.
  for (const size_t i : {6U, 7U}) EXPECT_TRUE(samples[i].has_reward && samples[i].reward == -3.0) << i;
}

TEST(FailureReward, ANumberOrNoneAsAsked) {
  const rl::Sample number = given(options("-0.5").failure(), {graded(-2), failed("memory")})[1];
  EXPECT_EQ(number.reward, -0.5);
  EXPECT_TRUE(number.grading_failed && number.has_reward && !number.remove);
  const rl::Sample dropped = given(options("drop").failure(), {graded(-2), failed("memory")})[1];
  EXPECT_EQ(dropped.reward, 0.0);
  EXPECT_TRUE(dropped.grading_failed && !dropped.has_reward && dropped.remove);
  for (const char* text : {"nan", "inf", "-1e999", "1x", "", "lowes"}) {
    EXPECT_THROW(options(text).check(), UserError) << text;
  }
}

TEST(FailureReward, FaultsOfTheRewardArePaidForAndThoseOfTheMachineDropped) {
  for (const char* policy : {"lowest", "-1"}) {
    for (const char* fault : {"exception", "deadline", "memory", "not_finite", "wrong_type", "wrong_count", "died"}) {
      EXPECT_TRUE(given(options(policy).failure(), {graded(1), failed(fault)})[1].has_reward) << fault;
    }
    const std::vector<rl::Sample> samples =
        given(options(policy).failure(), {graded(1), failed("not_started"), failed("died")});
    EXPECT_TRUE(samples[1].grading_failed && !samples[1].has_reward && samples[1].remove);
    EXPECT_TRUE(samples[2].has_reward);
  }
}

TEST(FailureReward, WhereNothingWasGradedThereIsNothingToCompareWith) {
  for (const char* policy : {"lowest", "drop", "-1"}) {
    for (const rl::Sample& sample : given(options(policy, "exact").failure(), {failed("exception"), failed("died")})) {
      EXPECT_TRUE(sample.grading_failed && !sample.has_reward && sample.remove) << policy;
    }
  }
}

TEST(FailureReward, LeavesWhatWasGradedAlone) {
  const rl::Sample sample = given(options("-9").failure(), {graded(0.25), failed("died")})[0];
  EXPECT_EQ(sample.reward, 0.25);
  EXPECT_TRUE(!sample.grading_failed && sample.has_reward && !sample.remove);
}

}  // namespace
}  // namespace tandem::sampling
