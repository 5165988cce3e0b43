// Penalties and masks between reward and advantage agree with formulas that are written apart from src/rl, in float64.
#include "rl/reward_shaping.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "rl/advantages.h"
#include "rl/losses.h"
#include "tandem/error.h"

namespace tandem::rl {
namespace {

constexpr int64_t kLongest = 12;
constexpr float kNotFinite = std::numeric_limits<float>::quiet_NaN();

uint32_t new_seed() { return std::random_device()(); }

// Draws groups of four, of any lengths and masks; some samples are removed, some dropped. Numbers that no formula may
// read are NaN.
std::vector<Sample> random_samples(std::mt19937& random, size_t num_groups) {
  std::uniform_real_distribution<float> logprob(-4.0F, 0.0F);
  std::vector<Sample> samples(4 * num_groups);
  for (size_t i = 0; i < samples.size(); ++i) {
    Sample& sample = samples[i];
    sample.group_id = i / 4;
    sample.sample_id = i;
    sample.reward = std::uniform_real_distribution<double>(-2.0, 3.0)(random);
    sample.remove = random() % 9 == 0;
    sample.has_reward = random() % 12 != 0;
    if (!sample.has_reward) sample.remove = true;
    sample.status = random() % 3 == 0 ? SampleStatus::kTruncated : SampleStatus::kCompleted;
    sample.completion.resize(1 + random() % kLongest);
    for (size_t t = 0; t < sample.completion.size(); ++t) {
      sample.loss_mask.push_back(random() % 4 != 0);
      sample.rollout_logprobs.push_back(logprob(random));
      sample.ref_logprobs.push_back(sample.is_trained(t) ? logprob(random) : kNotFinite);
    }
  }
  return samples;
}

// ---- The formulas ----

bool counts(const Sample& sample, size_t t) { return sample.has_reward && !sample.remove && sample.loss_mask[t] == 1; }

double k1(const Sample& sample, size_t t) {
  return static_cast<double>(sample.rollout_logprobs[t]) - static_cast<double>(sample.ref_logprobs[t]);
}

double sequence_kl(const Sample& sample) {
  double sum = 0.0;
  for (size_t t = 0; t < sample.completion.size(); ++t) sum += counts(sample, t) ? k1(sample, t) : 0.0;
  return sum;
}

// Computes verl's DAPORewardManager: min(-(length - (longest - buffer)) / buffer * factor, 0).
double overlong_reward(const LossConfig& config, const Sample& sample) {
  const auto buffer = static_cast<double>(config.overlong_buffer_tokens);
  const double exceeding = static_cast<double>(sample.completion.size()) - (static_cast<double>(kLongest) - buffer);
  return std::min(-exceeding / buffer * config.overlong_penalty_factor, 0.0);
}

double mean_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double deviation_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += (value - mean_of(values)) * (value - mean_of(values));
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

using TokenAdvantages = std::vector<std::vector<double>>;  // set for trained tokens, NaN elsewhere

// Computes one number of a sample from its own reward and those of its group.
using OfGroup = std::function<double(double own, const std::vector<double>& group)>;

TokenAdvantages by_group(const LossConfig& config, const std::vector<Sample>& samples, const OfGroup& advantage) {
  std::map<uint64_t, std::vector<double>> groups;
  const auto shaped = [&](const Sample& sample) {
    return sample.reward + overlong_reward(config, sample) - config.kl_coef * sequence_kl(sample);
  };
  for (const Sample& sample : samples) {
    if (sample.has_reward) groups[sample.group_id].push_back(shaped(sample));
  }
  TokenAdvantages result;
  for (const Sample& sample : samples) {
    std::vector<double>& tokens = result.emplace_back(sample.completion.size(), std::nan(""));
    for (size_t t = 0; t < tokens.size(); ++t) {
      if (counts(sample, t)) tokens[t] = advantage(shaped(sample), groups.at(sample.group_id));
    }
  }
  return result;
}

// Computes G_t = sum over s >= t of gamma^(tokens from t to s) r_s, as a double loop.
TokenAdvantages returns_of(const LossConfig& config, const std::vector<Sample>& samples) {
  TokenAdvantages result;
  for (const Sample& sample : samples) {
    std::vector<double>& tokens = result.emplace_back(sample.completion.size(), std::nan(""));
    size_t last = 0;
    for (size_t t = 0; t < tokens.size(); ++t) last = counts(sample, t) ? t : last;
    for (size_t t = 0; t < tokens.size(); ++t) {
      if (!counts(sample, t)) continue;
      tokens[t] = 0.0;
      double distance = 0.0;
      for (size_t s = t; s <= last; ++s) {
        if (s > t && (counts(sample, s) || config.discount_masked_tokens)) distance += 1.0;
        double reward = counts(sample, s) ? -config.kl_coef * k1(sample, s) : 0.0;
        if (s == last) reward += sample.reward + overlong_reward(config, sample);
        tokens[t] += std::pow(config.gamma, distance) * reward;
      }
    }
  }
  return result;
}

TokenAdvantages whitened(TokenAdvantages advantages, double epsilon) {
  std::vector<double> all;
  for (const std::vector<double>& tokens : advantages) {
    std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(all), [](double a) { return !std::isnan(a); });
  }
  const double mean = mean_of(all), deviation = deviation_of(all);
  for (std::vector<double>& tokens : advantages) {
    for (double& a : tokens) a = (a - mean) / std::sqrt(deviation * deviation + epsilon);
  }
  return advantages;
}

TokenAdvantages advantages_of(const LossConfig& config, const std::vector<Sample>& samples) {
  const std::string& row = config.advantage_estimator;
  const auto less_mean = [](double own, const std::vector<double>& group) { return own - mean_of(group); };
  if (row == "reinforce_plus_plus") return whitened(returns_of(config, samples), config.whiten_epsilon);
  if (row == "reinforce_plus_plus_baseline")
    return whitened(by_group(config, samples, less_mean), config.whiten_epsilon);
  if (row == "reinforce") return by_group(config, samples, [](double own, const auto&) { return own; });
  if (row == "dr_grpo") return by_group(config, samples, less_mean);
  if (row == "rloo") {
    return by_group(config, samples, [](double own, const std::vector<double>& group) {
      const auto n = static_cast<double>(group.size());
      return n < 2 ? 0.0 : own - (n * mean_of(group) - own) / (n - 1);
    });
  }
  return by_group(config, samples, [&](double own, const std::vector<double>& group) {
    return group.size() < 2 ? 0.0 : (own - mean_of(group)) / (deviation_of(group) + config.group_epsilon);
  });
}

TEST(RewardShaping, EveryEstimatorMakesItsAdvantagesOfWhatThePenaltiesLeave) {
  const uint32_t seed = new_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int draw = 0; draw < 40; ++draw) {
    LossConfig config;
    config.max_response_tokens = kLongest;
    config.kl_coef = draw % 4 == 0 ? 0.0 : std::uniform_real_distribution<double>(0.01, 2.0)(random);
    config.overlong_buffer_tokens = 1 + static_cast<int64_t>(random() % kLongest);
    config.overlong_penalty_factor = std::uniform_real_distribution<double>(0.1, 3.0)(random);
    config.gamma = draw % 2 == 0 ? 1.0 : 0.8;
    config.discount_masked_tokens = random() % 2 == 0;
    const std::vector<Sample> drawn = random_samples(random, 3);
    for (const Estimator& estimator : estimators()) {
      config.advantage_estimator = std::string(estimator.name);
      std::vector<Sample> samples = drawn;
      assign_advantages(config, samples);
      const TokenAdvantages expected = advantages_of(config, drawn);
      for (size_t i = 0; i < samples.size(); ++i) {
        EXPECT_EQ(samples[i].reward, drawn[i].reward) << "what the reward function gave";
        for (size_t t = 0; t < samples[i].completion.size(); ++t) {
          if (!counts(samples[i], t)) continue;
          const std::vector<double>& own = samples[i].advantages;
          ASSERT_NEAR(own[own.size() == 1 ? 0 : t], expected[i][t], 1e-9 * (1.0 + std::abs(expected[i][t])))
              << estimator.name << " draw " << draw << " sample " << i << " token " << t << " kl " << config.kl_coef;
        }
      }
    }
  }
}

// No reference is read, no token's number changes, and the bits are those of a run without penalties.
TEST(RewardShaping, AtCoefficientZeroNothingIsTakenAndNoReferenceIsNeeded) {
  const uint32_t seed = new_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::vector<Sample> samples = random_samples(random, 4);
  for (Sample& sample : samples) sample.ref_logprobs.clear();
  for (const Estimator& estimator : estimators()) {
    LossConfig config{.advantage_estimator = std::string(estimator.name)};
    assign_advantages(config, samples);
    for (const Sample& sample : samples) {
      EXPECT_EQ(sample.advantages.size(), 1U) << estimator.name;
      EXPECT_EQ(sample.overlong_penalty, 0.0);
      EXPECT_EQ(sample.kl_penalty, 0.0);
    }
    std::vector<const Sample*> views;
    for (const Sample& sample : samples) views.push_back(&sample);
    EXPECT_TRUE(shaping_metrics(config, views, false).empty());
    EXPECT_FALSE(samples.front().advantages.empty());
  }
  LossConfig with_kl{.kl_coef = 0.1};
  EXPECT_THROW(assign_advantages(with_kl, samples), BugError) << "nobody scored them";
}

TEST(RewardShaping, TheRewardFallsOverTheBufferAsInDapo) {
  LossConfig config{.overlong_buffer_tokens = 4, .overlong_penalty_factor = 2.0, .max_response_tokens = kLongest};
  std::vector<Sample> samples(kLongest);
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i].completion.resize(i + 1);
    samples[i].loss_mask.assign(i + 1, 1);
  }
  set_penalties(config, samples);
  const std::vector<double> expected = {0, 0, 0, 0, 0, 0, 0, 0, 0.5, 1.0, 1.5, 2.0};
  for (size_t i = 0; i < samples.size(); ++i) EXPECT_EQ(samples[i].overlong_penalty, expected[i]) << i + 1 << " tokens";
  config.overlong_buffer_tokens = kLongest;  // it begins at once
  set_penalties(config, samples);
  for (size_t i = 0; i < samples.size(); ++i) {
    EXPECT_NEAR(samples[i].overlong_penalty, 2.0 * static_cast<double>(i + 1) / kLongest, 1e-15);
  }
}

TEST(RewardShaping, ATruncatedSampleLeavesTheLossAndStaysInItsGroup) {
  const uint32_t seed = new_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::vector<Sample> drawn = random_samples(random, 4);
  std::vector<Sample> kept = drawn, masked = drawn;
  LossConfig config;
  remove_truncated(config, kept);
  config.mask_truncated_completions = true;
  remove_truncated(config, masked);
  assign_advantages(config, kept);
  assign_advantages(config, masked);
  for (size_t i = 0; i < drawn.size(); ++i) {
    EXPECT_EQ(kept[i].remove, drawn[i].remove);
    EXPECT_EQ(masked[i].remove, drawn[i].remove || drawn[i].status == SampleStatus::kTruncated);
    EXPECT_EQ(masked[i].advantages, kept[i].advantages) << "the group's statistics are the same";
  }
}

TEST(RewardShaping, NumbersAreCountedAndShown) {
  std::vector<Sample> samples(4);
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i].completion.resize(i + 1);
    samples[i].loss_mask.assign(i + 1, 1);
    samples[i].rollout_logprobs.assign(i + 1, -1.0F);
    samples[i].ref_logprobs.assign(i + 1, -1.5F);
    samples[i].reward = 1.0;
  }
  samples[3].status = SampleStatus::kTruncated;
  samples[0].has_reward = false;
  samples[0].remove = true;
  LossConfig config{.kl_coef = 0.2,
                    .mask_truncated_completions = true,
                    .overlong_buffer_tokens = 2,
                    .overlong_penalty_factor = 1.0,
                    .max_response_tokens = 4};
  remove_truncated(config, samples);
  set_penalties(config, samples);
  std::vector<const Sample*> views;
  for (const Sample& sample : samples) views.push_back(&sample);
  // The second and the third sample have 2 and 3 trained tokens of 0.5; the third and the fourth lose 0.5 and 1 for
  // length.
  const std::map<std::string, double> expected = {
      {"truncated_masked", 1.0},          {"kl", 0.25},
      {"kl_penalty/mean", 0.2 * 2.5 / 3}, {"overlong_penalty/mean", 0.5},
      {"overlong_ratio", 2.0 / 3},        {"shaped_reward", 1.0 - 0.5 - 0.2 * 2.5 / 3}};
  const std::map<std::string, double> metrics = shaping_metrics(config, views, false);
  ASSERT_EQ(metrics.size(), expected.size());
  for (const auto& [name, value] : expected) EXPECT_NEAR(metrics.at(name), value, 1e-15) << name;
  EXPECT_NEAR(shaping_metrics(config, views, true).at("kl"), 2.5 / 7, 1e-15) << "a removed sample counts as one token";
  for (Sample& sample : samples) sample.has_reward = false;
  for (const auto& [name, value] : shaping_metrics(config, views, false)) {
    EXPECT_TRUE(name == "kl" || name == "truncated_masked") << name << " of no reward";
  }
}

TEST(RewardShaping, AReferenceThatIsNoNumberIsNamed) {
  std::vector<Sample> samples(1);
  samples[0].sample_id = 77;
  samples[0].completion.resize(1);
  samples[0].loss_mask = {1};
  samples[0].rollout_logprobs = {-1.0F};
  for (const float value : {kNotFinite, -std::numeric_limits<float>::infinity()}) {
    samples[0].ref_logprobs = {value};
    try {
      set_penalties({.kl_coef = 0.1}, samples);
      ADD_FAILURE() << "taken";
    } catch (const EnvironmentError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("sample 77 has a log-prob that is not finite")) << error.what();
    }
  }
}

TEST(MaskOlderTokens, TakesThoseOfOtherWeightsOutOfTheLossMask) {
  const auto sample_of = [](std::vector<VersionSpan> versions) {
    Sample sample;
    sample.completion.resize(4);
    sample.loss_mask = {1, 0, 1, 1};
    sample.versions = std::move(versions);
    return sample;
  };
  std::vector<Sample> samples = {sample_of({{.begin = 0, .version = 3}}),
                                 sample_of({{.begin = 0, .version = 2}, {.begin = 3, .version = 3}}),
                                 sample_of({{.begin = 0, .version = 2}}), sample_of({})};
  samples.push_back(samples[3]);
  samples[4].is_given = true;
  const std::vector<Sample> before = samples;
  mask_older_tokens({}, 3, samples);
  for (size_t i = 0; i < samples.size(); ++i) EXPECT_EQ(samples[i].loss_mask, before[i].loss_mask) << i;
  LossConfig config;
  config.mask_off_policy = true;
  mask_older_tokens(config, 3, samples);
  EXPECT_EQ(samples[0].loss_mask, before[0].loss_mask);
  EXPECT_EQ(samples[1].loss_mask, (std::vector<uint8_t>{0, 0, 0, 1}));
  EXPECT_EQ(samples[2].loss_mask, (std::vector<uint8_t>{0, 0, 0, 0}));
  EXPECT_EQ(samples[3].loss_mask, before[3].loss_mask) << "without versions all is of these weights";
  EXPECT_EQ(samples[4].loss_mask, before[4].loss_mask) << "nobody sampled it";
}

}  // namespace
}  // namespace tandem::rl
