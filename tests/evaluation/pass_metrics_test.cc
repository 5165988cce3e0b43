// When a sample passes, as pass@k counts it: by one reward's value, whatever the weighted sum is.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "evaluation/rollout_metrics.h"

namespace tandem::evaluation {
namespace {

using Parts = std::vector<std::pair<std::string, std::optional<double>>>;

struct Given {
  uint64_t group_id = 0;
  double reward = 0.0;
  Parts parts = {};  // none: the reward is no sum
  bool has_reward = true, failed = false;
};

sampling::Rollout rollout_of(const std::vector<Given>& samples) {
  sampling::Rollout rollout;
  for (const Given& given : samples) {
    rl::Sample& sample = rollout.samples.emplace_back();
    sample.group_id = given.group_id;
    sample.reward = given.reward;
    sample.has_reward = given.has_reward;
    sample.grading_failed = given.failed;
    reward::Grade& grade = rollout.grades.emplace_back();
    grade.failed = given.failed;
    for (const auto& [name, value] : given.parts) grade.parts.push_back({name, value});
  }
  return rollout;
}

config::PassRule rule(const std::string& reward, double threshold = 1.0) {
  return {.reward = reward, .threshold = threshold};
}

// 1 x exact + 0.2 x format: pass@1 was the share of right answers of bad format, whose sum alone is 1.
TEST(PassMetrics, OneRewardOfASumIsJudged) {
  const sampling::Rollout rollout = rollout_of({{0, 1.2, {{"exact", 1.0}, {"format", 1.0}}},
                                                {0, 1.0, {{"exact", 1.0}, {"format", 0.0}}},
                                                {0, 0.2, {{"exact", 0.0}, {"format", 1.0}}},
                                                {0, 0.0, {{"exact", 0.0}, {"format", 0.0}}}});
  EXPECT_EQ(pass_metrics(rollout, rule("exact")).at("pass@1"), 0.5);
  EXPECT_EQ(pass_metrics(rollout, rule("exact")).at("pass@4"), 1.0);
  const sampling::Rollout by_format =
      rollout_of({{0, 0.2, {{"exact", 0.0}, {"format", 0.7}}}, {0, 1.0, {{"exact", 1.0}, {"format", 0.5}}}});
  EXPECT_EQ(pass_metrics(by_format, rule("format", 0.7)).at("pass@1"), 0.5);
}

// 0.7 + 0.2 + 0.1 is 0.9999999999999999; a reward of 2 has passed too.
TEST(PassMetrics, FromTheThresholdOn) {
  const sampling::Rollout rollout = rollout_of({{0, 0.7 + 0.2 + 0.1}, {0, 2.0}, {1, 0.999}, {1, -1.0}});
  EXPECT_LT(rollout.samples[0].reward, 1.0);
  EXPECT_EQ(pass_metrics(rollout, rule("reward")).at("pass@1"), 0.5);
  EXPECT_EQ(pass_metrics(rollout, rule("reward", -0.5)).at("pass@1"), 0.75);
}

// The mean reward was of the samples that have one, and pass@1 of all: they are the same samples.
TEST(PassMetrics, FailedGradingsHaveNotPassedAndSamplesWithoutARewardCountNowhere) {
  const sampling::Rollout rollout =
      rollout_of({{0, 1.0},
                  {0, 0.0},
                  {0, 1.0, {}, /*has_reward=*/true, /*failed=*/true},  // --rm-failure-reward 1
                  {0, 0.0, {}, /*has_reward=*/false, /*failed=*/true},
                  {1, 1.0, {}, /*has_reward=*/false, /*failed=*/true}});
  EXPECT_EQ(pass_metrics(rollout, rule("reward")), (report::Metrics{{"pass@1", 1.0 / 3.0}, {"pass@2", 2.0 / 3.0}}));
  // Another reward of the sum failed: so has the grading.
  const sampling::Rollout sum = rollout_of({{0, 0.0, {{"exact", 1.0}, {"format", std::nullopt}}, true, /*failed=*/true},
                                            {0, 1.0, {{"exact", 1.0}, {"format", 0.0}}}});
  EXPECT_EQ(pass_metrics(sum, rule("exact")).at("pass@1"), 0.5);
}

TEST(PassMetrics, SamplesToWhichTheRewardDoesNotApplyAreLeftOut) {
  const sampling::Rollout rollout = rollout_of({{0, 1.0, {{"math", 1.0}, {"code", std::nullopt}}},
                                                {0, 0.0, {{"math", 0.0}, {"code", std::nullopt}}},
                                                {1, 1.0, {{"math", std::nullopt}, {"code", 1.0}}},
                                                {1, 1.0, {{"math", std::nullopt}, {"code", 1.0}}}});
  EXPECT_EQ(pass_metrics(rollout, rule("math")), (report::Metrics{{"pass@1", 0.5}, {"pass@2", 1.0}}));
  EXPECT_EQ(pass_metrics(rollout, rule("code")), (report::Metrics{{"pass@1", 1.0}, {"pass@2", 1.0}}));
}

// A function that gives 0.5 at most never reaches the threshold of 1: pass@k stays 0, and --save-best keeps nothing.
TEST(PassMetrics, TheHighestValueIsKnownWhereNoneOfSeveralPasses) {
  const sampling::Rollout rollout = rollout_of({{0, 1.5, {{"half", 0.5}, {"other", 1.0}}},
                                                {0, 1.0, {{"half", 0.0}, {"other", 1.0}}},
                                                {0, 1.0, {{"half", std::nullopt}, {"other", 1.0}}},
                                                {0, 9.0, {}, /*has_reward=*/true, /*failed=*/true}});
  EXPECT_EQ(highest_without_pass(rollout, rule("half")), 0.5);
  EXPECT_EQ(highest_without_pass(rollout, rule("half", 0.5)), std::nullopt);
  EXPECT_EQ(highest_without_pass(rollout, rule("other", 2.0)), std::nullopt) << "equal values: no answer is right yet";
}

}  // namespace
}  // namespace tandem::evaluation
