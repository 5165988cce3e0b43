// Rollout metrics have vime's names and values, and so have repetition and pass@k.
#include "rl/metrics.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "rl/advantages.h"

namespace tandem::rl {
namespace {

Sample scored(uint64_t group, double reward, std::vector<uint8_t> mask) {
  Sample sample;
  sample.group_id = group;
  sample.prompt = make_prompt({1, 2});
  sample.completion.resize(mask.size());
  sample.loss_mask = std::move(mask);
  sample.reward = reward;
  return sample;
}

std::vector<const Sample*> pointers(const std::vector<Sample>& samples) {
  std::vector<const Sample*> result;
  for (const Sample& sample : samples) result.push_back(&sample);
  return result;
}

TEST(RolloutMetrics, ReportVimesNames) {
  std::vector<Sample> samples = {scored(0, 1, {1, 1, 1}), scored(0, 0, {1, 0}), scored(1, 0.5, {1, 1, 1, 1}),
                                 scored(1, 0.5, {1})};
  samples[2].status = SampleStatus::kTruncated;
  samples[0].advantages = {0.5};
  samples[1].advantages = {-0.5};
  samples[2].advantages = samples[3].advantages = {0.0};
  const float logprobs[] = {-1, -2, -3, -4};
  for (Sample& sample : samples) sample.rollout_logprobs.assign(logprobs, logprobs + sample.completion.size());
  const std::map<std::string, double> expected = {{"raw_reward", 0.5},
                                                  {"rewards", 0.0},
                                                  {"response_lengths", 2.5},
                                                  {"total_lengths", 4.5},
                                                  {"response_len/mean", 2.25},
                                                  {"response_len/median", 2.0},
                                                  {"response_len/max", 4.0},
                                                  {"response_len/min", 1.0},
                                                  {"truncated", 0.25},
                                                  {"truncated_ratio", 0.25},
                                                  {"repetition_frac", 0.0},
                                                  {"zero_std/count_0.5", 1.0},
                                                  {"groups_without_signal", 1.0},
                                                  {"groups_with_equal_rewards", 1.0},
                                                  {"rollout_log_probs", (-2.0 - 1.0 - 2.5 - 1.0) / 4},
                                                  {"advantages", 0.0}};
  EXPECT_EQ(rollout_metrics(pointers(samples), /*per_token=*/false), expected);
}

TEST(RolloutMetrics, GivenAnswersAreNoCompletionsThatALimitCuts) {
  std::vector<Sample> samples = {scored(0, 1, {1, 1}), scored(1, 1, {1})};
  samples[0].status = SampleStatus::kTruncated;
  samples[1].is_given = true;
  EXPECT_EQ(rollout_metrics(pointers(samples), false).at("truncated_ratio"), 1.0);
  EXPECT_EQ(rollout_metrics(std::vector<const Sample*>{&samples[1]}, false).at("truncated_ratio"), 0.0);
}

// 49 / 49 is 1, and 49 * (1.0 / 49) is not.
TEST(RolloutMetrics, AShareOfAllIsOne) {
  std::vector<Sample> samples(49, scored(0, 1, {1}));
  for (Sample& sample : samples) sample.status = SampleStatus::kTruncated;
  EXPECT_EQ(rollout_metrics(pointers(samples), false).at("truncated_ratio"), 1.0);
}

TEST(RolloutMetrics, TheAdvantageOfASampleIsThatOfItsTrainedTokens) {
  std::vector<Sample> samples = {scored(0, 1, {1, 0, 0, 0}), scored(0, 0, {1, 1})};
  samples[0].advantages = {1.0, 0.0, 0.0, -0.5};
  samples[1].advantages = {0.5};
  EXPECT_EQ(rollout_metrics(pointers(samples), false).at("rewards"), 0.75);
}

TEST(RolloutMetrics, FailedSamplesAreCountedAndHaveNoReward) {
  std::vector<Sample> samples = {scored(0, 1, {1}), scored(0, 0, {1})};
  samples[1].grading_failed = true;
  samples[1].has_reward = false;
  samples[1].remove = true;
  const std::map<std::string, double> metrics = rollout_metrics(pointers(samples), false);
  EXPECT_EQ(metrics.at("raw_reward"), 1.0);
  EXPECT_EQ(metrics.at("failed"), 1.0);
  EXPECT_EQ(metrics.at("removed"), 1.0);
  EXPECT_EQ(metrics.at("zero_std/count_1"), 1.0);
}

TEST(RolloutMetrics, SamplesOutOfTheLossAreReducedAsTheLossDoes) {
  std::vector<Sample> samples = {scored(0, 1, {1, 1}), scored(0, 0, {1, 1, 1})};
  for (Sample& sample : samples) {
    sample.advantages = {1.0};
    sample.rollout_logprobs.assign(sample.completion.size(), -1.0F);
    sample.ref_logprobs = sample.teacher_logprobs = sample.rollout_logprobs;
  }
  samples[1].remove = true;
  const auto value = [&](const char* name, bool per_token, bool count_removed) {
    return rollout_metrics(pointers(samples), per_token, SignalOf::kAdvantages, count_removed).at(name);
  };
  for (const char* name : {"rollout_log_probs", "ref_log_probs", "teacher_log_probs"}) {
    EXPECT_DOUBLE_EQ(value(name, false, true), -0.5) << name;
    EXPECT_DOUBLE_EQ(value(name, true, true), -2.0 / 3.0) << name << ": it counts as one token";
    EXPECT_DOUBLE_EQ(value(name, false, false), -1.0) << name;
    EXPECT_DOUBLE_EQ(value(name, true, false), -1.0) << name;
  }
  EXPECT_DOUBLE_EQ(value("advantages", false, true), 0.5);
  EXPECT_DOUBLE_EQ(value("advantages", false, false), 1.0);
}

TEST(RolloutMetrics, FailedSamplesWithARewardAreLikeAnyOther) {
  std::vector<Sample> samples = {scored(0, 1, {1}), scored(0, -1, {1})};
  samples[1].grading_failed = true;
  samples[1].status = SampleStatus::kTruncated;
  const std::map<std::string, double> metrics = rollout_metrics(pointers(samples), false);
  EXPECT_EQ(metrics.at("raw_reward"), 0.0);
  EXPECT_EQ(metrics.at("failed"), 1.0);
  EXPECT_EQ(metrics.at("truncated_ratio"), 0.5) << "how it ended does not change when its grading fails";
  EXPECT_FALSE(metrics.contains("removed"));
}

TEST(RolloutMetrics, WithoutAnyRewardThereIsNoMean) {
  std::vector<Sample> samples = {scored(0, 0, {1}), scored(0, 0, {1})};
  for (Sample& sample : samples) sample.has_reward = false;
  EXPECT_FALSE(rollout_metrics(pointers(samples), false).contains("raw_reward"));
}

TEST(RolloutMetrics, OfNothingAreNone) { EXPECT_TRUE(rollout_metrics({}, false).empty()); }

TEST(RolloutMetrics, EqualRewardsAreNamedInTenths) {
  std::vector<Sample> samples = {scored(0, 0.1234567, {1}), scored(1, 0.0999999, {1}), scored(2, 0.25, {1}),
                                 scored(3, 1, {1}),         scored(4, -0.04, {1}),     scored(5, -1, {1})};
  std::map<std::string, double> counts;
  for (const auto& [name, value] : rollout_metrics(pointers(samples), false)) {
    if (name.starts_with("zero_std/")) counts[name] = value;
  }
  const std::map<std::string, double> expected = {{"zero_std/count_0.1", 2.0},
                                                  {"zero_std/count_0.2", 1.0},
                                                  {"zero_std/count_1", 1.0},
                                                  {"zero_std/count_0", 1.0},
                                                  {"zero_std/count_-1", 1.0}};
  EXPECT_EQ(counts, expected);
}

TEST(RolloutMetrics, GroupsWithoutSignalAreThoseOfTheEstimator) {
  // The groups have equal rewards, different ones, and no reward at all.
  std::vector<Sample> samples = {scored(0, 1, {1}), scored(0, 1, {1}), scored(1, 0, {1, 1}),
                                 scored(1, 1, {1}), scored(2, 0, {1}), scored(2, 0, {1})};
  samples[4].has_reward = samples[5].has_reward = false;
  const auto counts = [&](const char* estimator) {
    assign_advantages({.advantage_estimator = estimator}, samples);
    const std::map<std::string, double> metrics = rollout_metrics(pointers(samples), false);
    EXPECT_EQ(metrics.at("groups_with_equal_rewards"), 1.0);
    EXPECT_EQ(metrics.at("groups_without_reward"), 1.0);
    return metrics.at("groups_without_signal");
  };
  EXPECT_EQ(counts("grpo"), 2.0);
  EXPECT_EQ(counts("rloo"), 2.0);
  EXPECT_EQ(counts("reinforce"), 1.0) << "a reward of 1 is a signal of its own";
  EXPECT_EQ(counts("reinforce_plus_plus_baseline"), 1.0)
      << "whitened over the rollout, a group of equal rewards is above or below the mean of all tokens";
  samples[3].remove = true;
  samples[2].loss_mask = {0, 0};
  EXPECT_EQ(counts("grpo"), 3.0) << "none of its tokens is trained";
  // A term of the loss that reads no advantage trains every token that the mask has.
  const auto of_every_token = rollout_metrics(pointers(samples), false, SignalOf::kEveryTrainedToken);
  EXPECT_EQ(of_every_token.at("groups_without_signal"), 1.0);
  EXPECT_EQ(of_every_token.at("groups_with_equal_rewards"), 1.0);
}

// vime considers texts of more than 10,000 characters only.
TEST(Repetition, IsReportedAsVimeHasIt) {
  std::string loop, wide;
  for (int i = 0; i < 30; ++i) loop += "The answer is 7. ";
  EXPECT_TRUE(is_repetitive(loop));
  EXPECT_FALSE(has_repetition(loop));
  EXPECT_FALSE(has_repetition(std::string(10'000, 'a')));
  EXPECT_TRUE(has_repetition(std::string(10'001, 'a')));
  for (int i = 0; i < 10'000; ++i) wide += "\u00e9";
  EXPECT_FALSE(has_repetition(wide)) << "20,000 bytes are 10,000 characters";
  EXPECT_TRUE(has_repetition(wide + "a"));
  std::vector<Sample> samples = {scored(0, 1, {1}), scored(0, 0, {1})};
  samples[0].text = loop;
  EXPECT_EQ(rollout_metrics(pointers(samples), false).at("repetition_frac"), 0.0);
  samples[1].text = wide + "a";
  EXPECT_EQ(rollout_metrics(pointers(samples), false).at("repetition_frac"), 0.5);
}

TEST(Repetition, IsALoopAndNotProse) {
  std::string loop, noise;
  for (int i = 0; i < 500; ++i) loop += "the answer is 4. ";
  std::mt19937 random(1);
  for (int i = 0; i < 9000; ++i) noise += static_cast<char>('a' + random() % 26);
  EXPECT_TRUE(is_repetitive(loop));
  EXPECT_FALSE(is_repetitive(noise));
  EXPECT_FALSE(is_repetitive("the answer is 4."));
  EXPECT_FALSE(is_repetitive(""));
  EXPECT_TRUE(is_repetitive(noise + loop + loop)) << "only the end counts";
}

// Counts over all subsets of k of n samples, c of them correct.
double counted_pass_at_k(int64_t n, int64_t c, int64_t k) {
  double num_subsets = 0, num_passed = 0;
  for (uint32_t subset = 0; subset < (1U << n); ++subset) {
    if (std::popcount(subset) != k) continue;
    num_subsets += 1;
    num_passed += (subset & ((1U << c) - 1)) != 0 ? 1 : 0;
  }
  return num_passed / num_subsets;
}

TEST(PassAtK, IsTheChanceOverAllSubsets) {
  for (int64_t n = 1; n <= 8; ++n) {
    for (int64_t c = 0; c <= n; ++c) {
      for (int64_t k = 1; k <= n; ++k)
        EXPECT_NEAR(pass_at_k(n, c, k), counted_pass_at_k(n, c, k), 1e-12) << n << c << k;
    }
  }
}

TEST(PassAtK, IsTheMeanOverGroupsInPowersOfTwo) {
  std::vector<PassResult> results;
  for (int i = 0; i < 4; ++i) results.push_back({.group_id = 0, .passed = i == 0});
  for (int i = 0; i < 4; ++i) results.push_back({.group_id = 1, .passed = false});
  EXPECT_EQ(pass_rates(results), (std::map<std::string, double>{{"pass@1", 0.125}, {"pass@2", 0.25}, {"pass@4", 0.5}}));
  EXPECT_TRUE(pass_rates({}).empty());
}

TEST(PassAtK, WeighsGroupsByTheirSamples) {
  std::vector<PassResult> results;
  for (int i = 0; i < 3; ++i) results.push_back({.group_id = 0, .passed = i < 2});
  for (int i = 0; i < 2; ++i) results.push_back({.group_id = 1, .passed = false});
  const std::map<std::string, double> rates = pass_rates(results);
  ASSERT_EQ(rates.size(), 2U);
  EXPECT_NEAR(rates.at("pass@1"), 2.0 / 5.0, 1e-15);
  EXPECT_NEAR(rates.at("pass@2"), (3.0 * 1.0 + 2.0 * 0.0) / 5.0, 1e-15);
}

// A sample that was lost makes its own group too small for the largest k, and takes that k from no other group.
TEST(PassAtK, LeavesOutGroupsWithFewerSamples) {
  std::vector<PassResult> results;
  for (int i = 0; i < 4; ++i) results.push_back({.group_id = 0, .passed = i < 1});
  for (int i = 0; i < 3; ++i) results.push_back({.group_id = 1, .passed = false});
  const std::map<std::string, double> rates = pass_rates(results);
  ASSERT_EQ(rates.size(), 3U);
  EXPECT_NEAR(rates.at("pass@1"), 1.0 / 7.0, 1e-15);
  EXPECT_NEAR(rates.at("pass@2"), (4.0 * 0.5 + 3.0 * 0.0) / 7.0, 1e-15);
  EXPECT_NEAR(rates.at("pass@4"), 1.0, 1e-15);
}

}  // namespace
}  // namespace tandem::rl
