// The choice of a step's tokens: what it is made of, how many it takes, and what has no part in it.
#include "rl/token_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace tandem::rl {
namespace {

// Holds the tokens of one sample.
struct SampleTokens {
  SampleTokens(std::mt19937& random, uint64_t id, size_t length) : id(id) {
    std::normal_distribution<float> noise(0.0F, 1.0F);
    const double advantage = noise(random);
    for (size_t t = 0; t < length; ++t) {
      mask.push_back(random() % 4 != 0);
      logprobs.push_back(-std::abs(noise(random)));
      old_logprobs.push_back(logprobs[t]);
      advantages.push_back(advantage);
      entropy.push_back(std::abs(noise(random)));
    }
  }
  ChoiceInput input() const {
    return {.sample_id = id,
            .mask = mask,
            .logprobs = logprobs.data(),
            .old_logprobs = old_logprobs.data(),
            .advantages = advantages.data(),
            .entropy = entropy.data()};
  }
  uint64_t id;
  std::vector<uint8_t> mask;
  std::vector<float> logprobs, old_logprobs, entropy;
  std::vector<double> advantages;
};

std::vector<SampleTokens> drawn_step(uint32_t seed, size_t num_samples = 12) {
  std::mt19937 random(seed);
  std::vector<SampleTokens> step;
  for (size_t s = 0; s < num_samples; ++s) step.emplace_back(random, 100 + s, 1 + random() % 40);
  return step;
}

std::vector<TokenChoice> choose(const LossConfig& config, const std::vector<SampleTokens>& step, ChoiceSeed seed = {}) {
  std::vector<ChoiceInput> inputs;
  for (const SampleTokens& sample : step) inputs.push_back(sample.input());
  return choose_tokens(config, inputs, seed);
}

std::vector<std::vector<uint8_t>> covariant(const LossConfig& config, const std::vector<SampleTokens>& step,
                                            ChoiceSeed seed = {}) {
  std::vector<std::vector<uint8_t>> chosen;
  for (TokenChoice& choice : choose(config, step, seed)) chosen.push_back(std::move(choice.covariant));
  return chosen;
}

int64_t count(const std::vector<std::vector<uint8_t>>& marks) {
  return std::accumulate(marks.begin(), marks.end(), int64_t{0},
                         [](int64_t sum, const auto& row) { return std::accumulate(row.begin(), row.end(), sum); });
}

int64_t num_trained(const std::vector<SampleTokens>& step) {
  std::vector<std::vector<uint8_t>> masks;
  for (const SampleTokens& sample : step) masks.push_back(sample.mask);
  return count(masks);
}

// Returns the covariances of all trained tokens, computed as the formula stands.
std::vector<double> covariances(const std::vector<SampleTokens>& step) {
  double advantage = 0.0, logprob = 0.0;
  for (const SampleTokens& sample : step) {
    for (size_t t = 0; t < sample.mask.size(); ++t) {
      if (sample.mask[t] == 0) continue;
      advantage += sample.advantages[t] / static_cast<double>(num_trained(step));
      logprob += double{sample.logprobs[t]} / static_cast<double>(num_trained(step));
    }
  }
  std::vector<double> values;
  for (const SampleTokens& sample : step) {
    for (size_t t = 0; t < sample.mask.size(); ++t) {
      if (sample.mask[t] != 0) values.push_back((sample.advantages[t] - advantage) * (sample.logprobs[t] - logprob));
    }
  }
  return values;
}

LossConfig clip_cov(double ratio, double low, double high) {
  LossConfig config{.pg_loss_type = "clip_cov"};
  config.clip_cov_ratio = ratio;
  config.clip_cov_lb = low;
  config.clip_cov_ub = high;
  return config;
}

LossConfig kl_cov(double ratio) {
  LossConfig config{.pg_loss_type = "kl_cov"};
  config.kl_cov_ratio = ratio;
  return config;
}

TEST(TokenChoice, KlCovTakesTheShareOfTheHighestCovariance) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const std::vector<SampleTokens> step = drawn_step(seed);
  std::vector<double> values = covariances(step);
  for (const double ratio : {1e-4, 0.1, 0.5, 1.0}) {
    const auto expected = static_cast<int64_t>(std::max(1.0, std::floor(ratio * static_cast<double>(values.size()))));
    const auto chosen = covariant(kl_cov(ratio), step);
    EXPECT_EQ(count(chosen), expected) << ratio;
    double least_chosen = std::numeric_limits<double>::infinity(), most_left = -least_chosen;
    size_t next = 0;
    for (size_t s = 0; s < step.size(); ++s) {
      for (size_t t = 0; t < step[s].mask.size(); ++t) {
        if (step[s].mask[t] == 0) {
          EXPECT_EQ(chosen[s][t], 0) << "not trained";
          continue;
        }
        const double value = values[next++];
        (chosen[s][t] != 0 ? least_chosen : most_left) =
            chosen[s][t] != 0 ? std::min(least_chosen, value) : std::max(most_left, value);
      }
    }
    EXPECT_GE(least_chosen, most_left - 1e-12) << ratio;
  }
}

TEST(TokenChoice, OfEqualCovariancesTheEarlierTokenIsTaken) {
  std::vector<SampleTokens> step = drawn_step(3, 4);
  for (SampleTokens& sample : step) std::ranges::fill(sample.advantages, 0.5);  // all covariances are 0
  const auto chosen = covariant(kl_cov(0.3), step);
  int64_t left = static_cast<int64_t>(std::floor(0.3 * static_cast<double>(num_trained(step))));
  ASSERT_GT(left, 1);
  for (size_t s = 0; s < step.size(); ++s) {
    for (size_t t = 0; t < step[s].mask.size(); ++t) {
      if (step[s].mask[t] == 0) continue;
      EXPECT_EQ(chosen[s][t], left-- > 0 ? 1 : 0) << s << " " << t;
    }
  }
}

TEST(TokenChoice, ClipCovTakesItsShareBetweenTheBoundsAndNoClippedToken) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::vector<SampleTokens> step = drawn_step(seed);
  const std::vector<double> values = covariances(step);
  // Every third token has moved so far that its ratio is clipped, whatever the sign of its advantage.
  for (SampleTokens& sample : step) {
    for (size_t t = 0; t < sample.mask.size(); t += 3) {
      sample.old_logprobs[t] = sample.logprobs[t] + (sample.advantages[t] > 0 ? -2.0F : 2.0F);
    }
  }
  const auto all = covariant(clip_cov(1.0, -0.1, 0.5), step);
  size_t next = 0;
  for (size_t s = 0; s < step.size(); ++s) {
    for (size_t t = 0; t < step[s].mask.size(); ++t) {
      const bool may = step[s].mask[t] != 0 && t % 3 != 0 && values[next] > -0.1 && values[next] < 0.5;
      next += step[s].mask[t];
      EXPECT_EQ(all[s][t], may ? 1 : 0) << s << " " << t;
    }
  }
  const auto share = static_cast<int64_t>(std::max(1.0, std::floor(0.1 * static_cast<double>(num_trained(step)))));
  const auto some = covariant(clip_cov(0.1, -0.1, 0.5), step, {.seed = 1, .step = 2});
  EXPECT_EQ(count(some), std::min(share, count(all)));
  for (size_t s = 0; s < step.size(); ++s) {
    for (size_t t = 0; t < some[s].size(); ++t) EXPECT_LE(some[s][t], all[s][t]);
  }
  EXPECT_EQ(count(covariant(clip_cov(1.0, 1000.0, 1001.0), step)), 0);
}

TEST(TokenChoice, ClipCovDrawsByRunStepAndSampleAndEachTokenAlike) {
  std::vector<SampleTokens> step = drawn_step(5);
  const LossConfig config = clip_cov(0.1, -100.0, 100.0);
  const auto chosen = covariant(config, step, {.seed = 1, .step = 2});
  EXPECT_EQ(covariant(config, step, {.seed = 1, .step = 2}), chosen);
  EXPECT_NE(covariant(config, step, {.seed = 2, .step = 2}), chosen);
  EXPECT_NE(covariant(config, step, {.seed = 1, .step = 3}), chosen);
  // A token keeps its random number where samples stand in another order.
  std::vector<SampleTokens> reversed(step.rbegin(), step.rend());
  auto again = covariant(config, reversed, {.seed = 1, .step = 2});
  std::ranges::reverse(again);
  EXPECT_EQ(again, chosen);
  // Over many steps each trained token is taken about as often as any other.
  std::vector<int64_t> times;
  constexpr int kNumSteps = 4000;
  for (uint64_t k = 0; k < kNumSteps; ++k) {
    const auto of_step = covariant(config, step, {.seed = 1, .step = k});
    size_t i = 0;
    for (size_t s = 0; s < step.size(); ++s) {
      for (size_t t = 0; t < step[s].mask.size(); ++t) {
        if (step[s].mask[t] == 0) continue;
        if (k == 0) times.push_back(0);
        times[i++] += of_step[s][t];
      }
    }
  }
  const double p = static_cast<double>(count(chosen)) / static_cast<double>(num_trained(step));
  const double deviation = std::sqrt(kNumSteps * p * (1 - p));
  for (const int64_t n : times) EXPECT_NEAR(static_cast<double>(n), kNumSteps * p, 6 * deviation);
}

TEST(TokenChoice, TheTopEntropyQuantileIsThatOfTheWholeStep) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::vector<SampleTokens> step = drawn_step(seed);
  step[1].entropy.assign(step[1].entropy.size(), 0.7F);  // equal ones are treated alike
  std::vector<float> sorted;
  for (const SampleTokens& sample : step) {
    for (size_t t = 0; t < sample.mask.size(); ++t) {
      if (sample.mask[t] != 0) sorted.push_back(sample.entropy[t]);
    }
  }
  std::ranges::sort(sorted);
  for (const double share : {0.05, 0.2, 0.5, 0.9}) {
    LossConfig config;
    config.top_entropy_quantile = share;
    const double place = (1.0 - share) * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<size_t>(place);
    const double above = sorted[std::min(below + 1, sorted.size() - 1)];
    const double quantile = sorted[below] + (place - std::floor(place)) * (above - sorted[below]);
    const std::vector<TokenChoice> choices = choose(config, step);
    for (size_t s = 0; s < step.size(); ++s) {
      EXPECT_TRUE(choices[s].covariant.empty());
      for (size_t t = 0; t < step[s].mask.size(); ++t) {
        const bool is_low = step[s].mask[t] != 0 && step[s].entropy[t] < quantile - 1e-9;
        EXPECT_EQ(choices[s].low_entropy[t], is_low ? 1 : 0) << share << " " << s << " " << t;
      }
    }
  }
}

// (1 - 0.7) 10 is above 3 in double: the token at that place is kept all the same.
TEST(TokenChoice, AQuantileThatIsATokenKeepsThatToken) {
  std::mt19937 random(1);
  SampleTokens sample(random, 1, 11);
  sample.mask.assign(11, 1);
  for (size_t t = 0; t < 11; ++t) sample.entropy[t] = static_cast<float>(t);
  LossConfig config;
  config.top_entropy_quantile = 0.7;
  EXPECT_EQ(choose(config, {sample})[0].low_entropy, (std::vector<uint8_t>{1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(TokenChoice, WhatIsNotFiniteOrNotTrainedIsHarmless) {
  std::vector<SampleTokens> step = drawn_step(8, 3);
  LossConfig config = kl_cov(0.5);
  config.top_entropy_quantile = 0.5;
  for (SampleTokens& sample : step) std::ranges::fill(sample.mask, uint8_t{0});
  step[0].advantages.clear();
  for (const TokenChoice& choice : choose(config, step)) {
    EXPECT_EQ(std::ranges::count(choice.covariant, 1), 0);
    EXPECT_EQ(std::ranges::count(choice.low_entropy, 1), 0);
  }
  step = drawn_step(8, 3);
  step[1].mask.assign(step[1].mask.size(), 1);
  step[1].logprobs[0] = step[1].entropy[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(count(covariant(config, step)), 0) << "no covariance is finite";
  EXPECT_EQ(choose(config, step)[1].low_entropy[0], 0) << "the loss sees the token, and is not finite";
  EXPECT_TRUE(choose({}, step)[0].covariant.empty());
}

}  // namespace
}  // namespace tandem::rl
