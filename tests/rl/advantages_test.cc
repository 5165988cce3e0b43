// Advantages agree with verl and TRL, and keep their promises for any rewards.
#include "rl/advantages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "tests/rl/golden_losses.h"

namespace tandem::rl {
namespace {

// Returns the 16 sequences of a golden batch, each padded to 24 tokens.
std::vector<Sample> golden_samples(const std::string& batch) {
  const std::vector<double> rewards = golden().doubles(batch + ".in.rewards");
  const std::vector<uint8_t> mask = golden().mask(batch + ".in.mask");
  const std::vector<int64_t> groups = golden().integers(batch + ".in.group");
  std::vector<Sample> samples(kNumSamples);
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i].group_id = static_cast<uint64_t>(groups[i]);
    samples[i].sample_id = i;
    samples[i].reward = rewards[i];
    samples[i].completion.resize(kNumTokens);
    samples[i].loss_mask.assign(mask.begin() + static_cast<int64_t>(i) * kNumTokens,
                                mask.begin() + static_cast<int64_t>(i + 1) * kNumTokens);
  }
  return samples;
}

double advantage_at(const Sample& sample, size_t token) {
  return sample.advantages[sample.advantages.size() == 1 ? 0 : token];
}

struct VerlCase {
  const char* name;
  LossConfig config;
};

LossConfig with_gamma(double gamma) {
  LossConfig config{.advantage_estimator = "reinforce_plus_plus"};
  config.gamma = gamma;
  config.discount_masked_tokens = false;
  return config;
}

TEST(Advantages, AgreeWithVerl) {
  const VerlCase cases[] = {
      {"grpo", {}},
      {"grpo_vectorized", {.advantage_estimator = "gspo"}},
      {"grpo_no_std", {.advantage_estimator = "dr_grpo"}},
      {"rloo", {.advantage_estimator = "rloo"}},
      {"rloo_vectorized", {.advantage_estimator = "rloo"}},
      {"reinforce_plus_plus", with_gamma(1.0)},
      {"reinforce_plus_plus_gamma0.95", with_gamma(0.95)},
      {"reinforce_plus_plus_baseline", {.advantage_estimator = "reinforce_plus_plus_baseline"}},
  };
  for (const VerlCase& one : cases) {
    for (const char* batch : {"b0", "b1"}) {
      std::vector<Sample> samples = golden_samples(batch);
      assign_advantages(one.config, samples);
      const std::string tensor = std::string(batch) + ".verl.advantages." + one.name;
      const bool exact = golden().has(tensor + ".f64");
      const std::vector<double> theirs = golden().doubles(exact ? tensor + ".f64" : tensor);
      for (size_t i = 0; i < theirs.size(); ++i) {
        const Sample& sample = samples[i / kNumTokens];
        const double ours = sample.loss_mask[i % kNumTokens] != 0 ? advantage_at(sample, i % kNumTokens) : 0.0;
        // In float32 the almost equal group of b1 (1, 1, 1, 1.001) loses digits in its mean.
        const double tolerance = exact ? 1e-9 : 1e-5 + 5e-4 * std::abs(theirs[i]);
        ASSERT_NEAR(ours, theirs[i], tolerance) << tensor << " element " << i;
      }
    }
  }
}

TEST(Advantages, AgreeWithTrl) {
  LossConfig group{.group_epsilon = 1e-4}, batch{.group_epsilon = 1e-4}, none{.disable_grpo_std_normalization = true};
  batch.reward_std_scope = "batch";
  const std::tuple<const char*, LossConfig, bool> cases[] = {
      {"group", group, false},
      {"batch", batch, false},
      {"none", none, false},
      {"rloo", {.advantage_estimator = "rloo"}, false},
      {"two_rewards_sum_then_normalize", group, true},
  };
  for (const auto& [name, config, two_rewards] : cases) {
    for (const std::string b : {"b0", "b1"}) {
      std::vector<Sample> samples = golden_samples(b);
      const std::vector<double> second = golden().doubles(b + ".in.rewards_b");
      if (two_rewards) {
        for (size_t i = 0; i < samples.size(); ++i) samples[i].reward += 0.25 * second[i];
      }
      assign_advantages(config, samples);
      const std::vector<double> theirs = golden().doubles(b + ".trl.advantages." + name);
      ASSERT_EQ(theirs.size(), samples.size());
      for (size_t i = 0; i < samples.size(); ++i) {
        ASSERT_EQ(samples[i].advantages.size(), 1U);
        ASSERT_NEAR(samples[i].advantages[0], theirs[i], 1e-5 + 5e-4 * std::abs(theirs[i]))
            << b << name << " sample " << i;
      }
    }
  }
}

TEST(Advantages, OfSeveralRewardsAreTrlsIfEachIsNormalised) {
  LossConfig config{.group_epsilon = 1e-4, .reward_aggregation = "normalize_then_sum"};
  for (const std::string b : {"b0", "b1"}) {
    std::vector<Sample> samples = golden_samples(b);
    const std::vector<double> second = golden().doubles(b + ".in.rewards_b");
    RewardParts parts{.weights = {1.0, 0.25}, .values = {}};
    for (size_t i = 0; i < samples.size(); ++i) parts.values.push_back({samples[i].reward, second[i]});
    assign_advantages(config, samples, parts);
    const std::vector<double> theirs = golden().doubles(b + ".trl.advantages.two_rewards_normalize_then_sum");
    ASSERT_EQ(theirs.size(), samples.size());
    for (size_t i = 0; i < samples.size(); ++i) {
      ASSERT_EQ(samples[i].advantages.size(), 1U);
      ASSERT_NEAR(samples[i].advantages[0], theirs[i], 1e-5 + 5e-4 * std::abs(theirs[i])) << b << " sample " << i;
    }
  }
}

TEST(Advantages, EveryGoldenTensorIsClaimedOrLeftOut) {
  // Other baselines, which no row has, are left out (docs/LOSSES.md).
  const std::set<std::string> claimed = {"verl.grpo",
                                         "verl.grpo_no_std",
                                         "verl.grpo_vectorized",
                                         "verl.rloo",
                                         "verl.rloo_vectorized",
                                         "verl.reinforce_plus_plus",
                                         "verl.reinforce_plus_plus_gamma0.95",
                                         "verl.reinforce_plus_plus_baseline",
                                         "trl.group",
                                         "trl.batch",
                                         "trl.none",
                                         "trl.rloo",
                                         "trl.two_rewards_sum_then_normalize",
                                         "trl.two_rewards_normalize_then_sum"};
  const std::set<std::string> left_out = {"verl.opo", "verl.gpg", "verl.remax", "verl.grpo_passk",
                                          "trl.rloo_normalized"};
  for (const auto& [id, value] : golden().cases().at("advantages").items()) {
    const std::string name = id.substr(3);
    EXPECT_EQ(claimed.count(name) + left_out.count(name), 1U) << id;
  }
}

std::vector<Sample> small_samples(const std::vector<double>& rewards, size_t group_size) {
  std::vector<Sample> samples(rewards.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i].group_id = i / group_size;
    samples[i].reward = rewards[i];
    samples[i].completion.resize(3);
    samples[i].loss_mask.assign(3, 1);
  }
  return samples;
}

TEST(Advantages, AreGroupLocalWithoutWhitening) {
  std::vector<Sample> together = small_samples({0, 1, 1, 0.5, 0.25, 3}, 3);
  assign_advantages({}, together);
  std::vector<Sample> alone(together.begin() + 3, together.end());
  assign_advantages({}, alone);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(alone[i].advantages, together[i + 3].advantages);
}

TEST(Advantages, FailedSamplesWithARewardTakePart) {
  std::vector<Sample> samples = small_samples({1, 0, 0}, 3), others = samples;
  samples[2].grading_failed = true;
  LossConfig config;
  assign_advantages(config, samples);
  assign_advantages(config, others);
  for (size_t i = 0; i < samples.size(); ++i) EXPECT_EQ(samples[i].advantages, others[i].advantages);
  EXPECT_LT(samples[2].advantages[0], 0.0);
}

TEST(Advantages, FailedSamplesStayOutOfTheGroup) {
  std::vector<Sample> samples = small_samples({1, 0, 7}, 3);
  samples[2].grading_failed = true;
  samples[2].has_reward = false;
  samples[2].reward = std::nan("");
  assign_advantages({}, samples);
  EXPECT_NEAR(samples[0].advantages[0], 0.5 / (std::sqrt(0.5) + 1e-6), 1e-12);
  EXPECT_EQ(samples[0].advantages[0], -samples[1].advantages[0]);
  EXPECT_EQ(samples[2].advantages[0], 0.0);
}

TEST(Advantages, OfASampleAloneInItsGroupAreZero) {
  for (const char* estimator : {"grpo", "dr_grpo", "rloo"}) {
    std::vector<Sample> samples = small_samples({1}, 1);
    assign_advantages({.advantage_estimator = estimator}, samples);
    EXPECT_EQ(samples[0].advantages, std::vector<double>{0.0}) << estimator;
  }
}

// Rewards that apply to some samples are normalised over these; a group in which each is the same has exactly 0, though
// the other groups differ.
TEST(Advantages, OfSeveralRewardsLeaveOutWhatDoesNotApply) {
  const LossConfig config{.group_epsilon = 0.0, .reward_aggregation = "normalize_then_sum"};
  std::vector<Sample> samples = small_samples({0, 0, 0, 0, 0, 0, 0, 0}, 4);
  samples[3].has_reward = false;
  RewardParts parts{.weights = {1.0, 2.0}, .values = {}};
  const auto none = std::optional<double>();
  for (const double first : {1.0, 3.0, 5.0, 1e9}) parts.values.push_back({first, first == 5.0 ? none : first});
  for (int i = 0; i < 4; ++i) parts.values.push_back({0.1, i == 2 ? none : 0.1});
  assign_advantages(config, samples, parts);
  // The sums of the first group: (-1, 0, 1) + 2 (-1, 1, none) / sqrt(2).
  const double root = std::sqrt(2.0);
  const std::vector<double> sums = {-1 - root, root, 1, 0, 0, 0, 0};
  double squares = 0.0;
  for (const double sum : sums) squares += sum * sum;
  const double spread = std::sqrt(squares / 6.0);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(samples[i].advantages[0], sums[i] / spread, 1e-12) << i;
  for (size_t i = 3; i < 8; ++i) EXPECT_EQ(samples[i].advantages, std::vector<double>{0.0}) << i;
}

TEST(Advantages, OfSeveralRewardsCountAFailedSampleAsTheLowest) {
  const LossConfig config{.reward_aggregation = "normalize_then_sum"};
  std::vector<Sample> samples = small_samples({0, 0, 0}, 3), others = samples;
  samples[2].grading_failed = true;
  const auto none = std::optional<double>();
  assign_advantages(config, samples, {.weights = {1.0, 0.5}, .values = {{1.0, 4.0}, {0.0, 2.0}, {none, 3.0}}});
  assign_advantages(config, others, {.weights = {1.0, 0.5}, .values = {{1.0, 4.0}, {0.0, 2.0}, {0.0, 2.0}}});
  for (size_t i = 0; i < samples.size(); ++i) EXPECT_EQ(samples[i].advantages, others[i].advantages) << i;
}

TEST(Advantages, OfSeveralRewardsCountAFailedSampleAsTheWorstWhereAWeightIsNegative) {
  const LossConfig config{.reward_aggregation = "normalize_then_sum"};
  std::vector<Sample> samples = small_samples({0, 0, 0}, 3), others = samples;
  samples[2].grading_failed = true;
  const auto none = std::optional<double>();
  assign_advantages(config, samples, {.weights = {1.0, -1.0}, .values = {{1.0, 0.0}, {0.0, 1.0}, {none, none}}});
  assign_advantages(config, others, {.weights = {1.0, -1.0}, .values = {{1.0, 0.0}, {0.0, 1.0}, {0.0, 1.0}}});
  for (size_t i = 0; i < samples.size(); ++i) EXPECT_EQ(samples[i].advantages, others[i].advantages) << i;
}

// The mean of three times 0.1 is not 0.1: with --group-epsilon 0 such groups once trained at full strength.
TEST(Advantages, OfEqualRewardsAreExactlyZeroWithoutAnyEpsilon) {
  for (const Estimator& estimator : estimators()) {
    for (const char* scope : {"group", "batch"}) {
      for (const bool whiten : {false, true}) {
        for (const double reward : {0.0, 1.0, 0.1, 0.7, 0.3, 1.1, -1e-9}) {
          for (const size_t n : {1, 2, 3, 6, 7, 8, 16}) {
            LossConfig config{.advantage_estimator = std::string(estimator.name)};
            config.group_epsilon = config.whiten_epsilon = 0.0;
            config.reward_std_scope = scope;
            config.normalize_advantages = whiten;
            std::vector<Sample> samples = small_samples(std::vector<double>(2 * n, reward), n);
            assign_advantages(config, samples);
            // A reward is a signal in itself for `reinforce` alone.
            const double expected = estimator.needs_group || estimator.name != "reinforce" || whiten ? 0.0 : reward;
            for (const Sample& sample : samples) {
              ASSERT_EQ(sample.advantages, std::vector<double>{expected})
                  << estimator.name << " " << scope << " " << reward << " x " << n;
            }
          }
        }
      }
    }
  }
}

// Their squares, and the sum of three of them, exceed a double. The spread was once infinite: advantages were 0, or NaN
// and the loss "-nan".
TEST(Advantages, OfHugeRewardsAreThoseOfSmallOnes) {
  for (const double unit : {1e160, 1e200, 0x1.0p1022}) {
    std::vector<Sample> small(4), huge(4);
    for (size_t i = 0; i < small.size(); ++i) {
      const double reward = std::vector<double>{1.0, 0.5, 0.25, 1.0}[i];
      for (std::vector<Sample>* samples : {&small, &huge}) {
        (*samples)[i].group_id = 1;
        (*samples)[i].sample_id = i;
        (*samples)[i].completion = {1, 2};
        (*samples)[i].loss_mask = {1, 1};
        (*samples)[i].reward = samples == &huge ? reward * unit : reward;
      }
    }
    LossConfig config;
    config.group_epsilon = 0.0;
    assign_advantages(config, small);
    assign_advantages(config, huge);
    for (size_t i = 0; i < small.size(); ++i) {
      EXPECT_NEAR(advantage_at(huge[i], 0), advantage_at(small[i], 0), 1e-12) << unit;
    }
  }
}

TEST(Advantages, OfAGroupOfEqualRewardsAreExactlyZeroBesideOthers) {
  for (const Estimator& estimator : estimators()) {
    if (!estimator.needs_group || estimator.advantage == AdvantageKind::kGroupMeanWhitened) continue;
    std::vector<Sample> samples = small_samples({0.1, 0.1, 0.1, 0.1, 0.2, 0.3}, 3);
    assign_advantages({.advantage_estimator = std::string(estimator.name), .group_epsilon = 0.0}, samples);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(samples[i].advantages[0], 0.0) << estimator.name;
    EXPECT_LT(samples[3].advantages[0], 0.0) << estimator.name;
    EXPECT_GT(samples[5].advantages[0], 0.0) << estimator.name;
  }
}

TEST(Advantages, AreMadeOfRawRewardsByEveryEstimatorWhenNormalisationIsDisabled) {
  const std::vector<double> rewards = {1, 0.25, 3, 0.5};
  double mean = 0.0, squares = 0.0;
  for (const double reward : rewards) mean += reward / 4;
  for (const double reward : rewards) squares += (reward - mean) * (reward - mean);
  // The whitening is over four samples of three tokens each.
  const double deviation = std::sqrt(3 * squares / 11 + LossConfig{}.whiten_epsilon);
  for (const Estimator& estimator : estimators()) {
    for (const size_t n : {1, 2}) {
      std::vector<Sample> samples = small_samples(rewards, n);
      const LossConfig config{.advantage_estimator = std::string(estimator.name),
                              .disable_rewards_normalization = true};
      assign_advantages(config, samples);
      const bool whitens = estimator.name.starts_with("reinforce_plus_plus");
      for (size_t i = 0; i < samples.size(); ++i) {
        const double expected = whitens ? (rewards[i] - mean) / deviation : rewards[i];
        EXPECT_NEAR(samples[i].advantages[0], expected, 1e-12) << estimator.name << " in groups of " << n;
      }
    }
  }
}

TEST(Advantages, WhitenedOnesHaveMeanZeroAndVarianceOneOverTrainedTokens) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::vector<Sample> samples(24);
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i].group_id = i / 4;
    samples[i].reward = std::uniform_real_distribution<double>(-1, 1)(random);
    samples[i].completion.resize(1 + random() % 20);
    for (size_t t = 0; t < samples[i].completion.size(); ++t) samples[i].loss_mask.push_back(random() % 4 != 0);
  }
  assign_advantages({.normalize_advantages = true}, samples);
  double count = 0, sum = 0, squares = 0;
  for (const Sample& sample : samples) {
    for (size_t t = 0; t < sample.loss_mask.size(); ++t) {
      if (sample.loss_mask[t] == 0) continue;
      count += 1, sum += advantage_at(sample, t), squares += advantage_at(sample, t) * advantage_at(sample, t);
    }
  }
  EXPECT_NEAR(sum / count, 0.0, 1e-12);
  EXPECT_NEAR(squares / (count - 1), 1.0, 1e-7);
}

TEST(Advantages, DiscountReachesBackFromTheLastTrainedToken) {
  LossConfig config{.advantage_estimator = "reinforce_plus_plus"};
  config.gamma = 0.5;
  std::vector<Sample> samples = small_samples({1, 3}, 1);
  for (Sample& sample : samples) sample.completion.resize(4);
  samples[0].loss_mask = {1, 0, 1, 0};  // returns 0.25, 0.5, 1 at the first three tokens
  samples[1].loss_mask = {1, 1, 1, 1};  // returns 0.375, 0.75, 1.5, 3
  assign_advantages(config, samples);
  // Whitening is affine: differences keep their proportion.
  const std::vector<double>& a = samples[0].advantages;
  const std::vector<double>& b = samples[1].advantages;
  ASSERT_EQ(a.size(), 4U);
  ASSERT_EQ(b.size(), 4U);
  EXPECT_NEAR((b[3] - b[2]) / (a[2] - a[0]), 1.5 / 0.75, 1e-9);
  config.discount_masked_tokens = false;  // now the tool token costs nothing: 0.5 at the first token
  assign_advantages(config, samples);
  EXPECT_NEAR(
      (samples[1].advantages[3] - samples[1].advantages[2]) / (samples[0].advantages[2] - samples[0].advantages[0]),
      1.5 / 0.5, 1e-9);
}

}  // namespace
}  // namespace tandem::rl
