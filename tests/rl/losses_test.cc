// Losses and their configuration: gradients against slopes of the value, and the promises of losses.h.
#include "rl/losses.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tandem/error.h"

namespace tandem::rl {
namespace {

// One random sample and the arrays behind its LossInput.
struct Drawn {
  explicit Drawn(std::mt19937& random, size_t length = 12) {
    std::normal_distribution<float> noise(0.0F, 0.3F);
    for (size_t t = 0; t < length; ++t) {
      logprobs.push_back(-std::abs(noise(random)) * 4 - 0.1F);
      old_logprobs.push_back(logprobs[t] + noise(random));
      rollout_logprobs.push_back(old_logprobs[t] + noise(random));
      ref_logprobs.push_back(logprobs[t] + noise(random));
      entropy.push_back(std::abs(noise(random)));
      mask.push_back(t == 0 || random() % 4 != 0);
      advantages.push_back(1.0);
    }
    advantages.assign(length, static_cast<double>(noise(random)) * 3);
  }
  LossInput input() const {
    return {.length = static_cast<int64_t>(mask.size()),
            .logprobs = logprobs.data(),
            .old_logprobs = old_logprobs.data(),
            .rollout_logprobs = rollout_logprobs.data(),
            .behavior_logprobs = behavior_logprobs.empty() ? nullptr : behavior_logprobs.data(),
            .ref_logprobs = ref_logprobs.data(),
            .entropy = entropy.data(),
            .mask = mask.data(),
            .advantages = advantages.data()};
  }
  std::vector<float> logprobs, old_logprobs, rollout_logprobs, ref_logprobs, entropy;
  std::vector<float> behavior_logprobs;  // empty: nothing was truncated
  std::vector<uint8_t> mask;
  std::vector<double> advantages;
};

struct Outcome {
  LossSums sums;
  std::vector<double> dlogprobs, dentropy;
};

Outcome lose(const LossConfig& config, const Drawn& drawn) {
  Outcome outcome;
  outcome.dlogprobs.resize(drawn.mask.size());
  outcome.dentropy.resize(drawn.mask.size());
  accumulate_loss(config, drawn.input(), {outcome.dlogprobs.data(), outcome.dentropy.data()}, outcome.sums);
  return outcome;
}

double loss_with(const LossConfig& config, Drawn drawn, size_t token, float logprob) {
  drawn.logprobs[token] = logprob;
  return lose(config, drawn).sums.at("loss");
}

// The slopes to both sides of a token's log-prob agree with the gradient; false where a kink lies between them.
bool agrees_with_slopes(const LossConfig& config, const Drawn& drawn, size_t t, double gradient) {
  const float x = drawn.logprobs[t], above = x + 1e-3F, below = x - 1e-3F;
  const double middle = loss_with(config, drawn, t, x);
  const double right = (loss_with(config, drawn, t, above) - middle) / (double{above} - double{x});
  const double left = (middle - loss_with(config, drawn, t, below)) / (double{x} - double{below});
  const double gap = std::abs(right - left);
  if (gap > 0.02 * (std::abs(right) + std::abs(left)) + 1e-4) return false;
  EXPECT_NEAR(gradient, 0.5 * (left + right), gap + 1e-5 * (1.0 + std::abs(gradient))) << "token " << t;
  return true;
}

TEST(Losses, GradientsAreThoseOfTheValue) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  int64_t num_tokens = 0, num_smooth = 0;
  // CISPO, DPPO and "+" kinds stop a gradient by design: the golden cases check those.
  for (const char* surrogate : {"ppo", "gspo", "rloo", "reinforce", "sapo", "dro"}) {
    for (const char* kl : {"k1", "k2", "k3", "low_var_kl", "abs"}) {
      for (const bool unbiased : {false, true}) {
        SCOPED_TRACE(std::string(surrogate) + " " + kl + (unbiased ? " unbiased" : ""));
        LossConfig config{.pg_loss_type = surrogate, .eps_clip_c = 1.5, .kl_loss_coef = 0.5, .kl_loss_type = kl};
        config.use_unbiased_kl = unbiased;
        config.entropy_coef = 0.1;
        config.use_tis = true;
        const Drawn drawn(random);
        const Outcome outcome = lose(config, drawn);
        for (size_t t = 0; t < drawn.mask.size(); ++t) {
          if (drawn.mask[t] == 0) continue;
          num_tokens += 1;
          num_smooth += agrees_with_slopes(config, drawn, t, outcome.dlogprobs[t]) ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(num_smooth, num_tokens * 9 / 10);
}

TEST(Losses, SampleMeansAreTheSameHoweverTheStepIsSplit) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (const Estimator& estimator : estimators()) {
    LossConfig config{.advantage_estimator = std::string(estimator.name), .kl_loss_coef = 0.1};
    config.loss_norm_tokens = 32;
    std::vector<Drawn> step;
    LossNormaliser normaliser(config);
    for (int i = 0; i < 8; ++i) {
      step.emplace_back(random, 1 + random() % 20);
      normaliser.add(step.back().mask);
    }
    LossSums together, first, second;
    for (size_t i = 0; i < step.size(); ++i) {
      std::vector<double> a(step[i].mask.size()), b(step[i].mask.size());
      accumulate_loss(config, step[i].input(), {a.data(), nullptr}, together);
      accumulate_loss(config, step[i].input(), {b.data(), nullptr}, i % 3 == 0 ? first : second);
      EXPECT_EQ(a, b);
    }
    for (const auto& [name, value] : normaliser.metrics(together)) {
      EXPECT_NEAR(normaliser.metrics(first)[name] + normaliser.metrics(second)[name], value, 1e-12) << name;
    }
  }
}

TEST(Losses, WhatLiesOutsideTheMaskIsNotRead) {
  std::mt19937 random(1);
  Drawn drawn(random);
  drawn.mask[3] = drawn.mask[7] = 0;
  Drawn spoilt = drawn;
  for (const size_t t : {3, 7}) {
    spoilt.logprobs[t] = spoilt.old_logprobs[t] = spoilt.entropy[t] = std::numeric_limits<float>::quiet_NaN();
    spoilt.ref_logprobs[t] = spoilt.rollout_logprobs[t] = -std::numeric_limits<float>::infinity();
    spoilt.advantages[t] = std::nan("");
  }
  for (const Surrogate& surrogate : surrogates()) {
    LossConfig config{.pg_loss_type = std::string(surrogate.name), .kl_loss_coef = 0.1};
    config.use_tis = config.use_opsm = true;
    const Outcome clean = lose(config, drawn), dirty = lose(config, spoilt);
    EXPECT_EQ(clean.sums, dirty.sums) << surrogate.name;
    EXPECT_EQ(clean.dlogprobs, dirty.dlogprobs) << surrogate.name;
    EXPECT_EQ(dirty.dlogprobs[3], 0.0);
  }
}

TEST(Losses, OneStaleTokenLeavesTheStepFinite) {
  std::mt19937 random(1);
  for (const Surrogate& surrogate : surrogates()) {
    Drawn drawn(random);
    drawn.old_logprobs[0] = drawn.ref_logprobs[0] = -5000.0F;
    drawn.rollout_logprobs[0] = -9000.0F;
    drawn.advantages.assign(drawn.advantages.size(), -1.0);
    LossConfig config{.pg_loss_type = std::string(surrogate.name), .kl_loss_coef = 0.1, .kl_loss_type = "k3"};
    config.use_tis = config.use_unbiased_kl = true;
    const Outcome outcome = lose(config, drawn);
    EXPECT_TRUE(std::isfinite(outcome.sums.at("loss"))) << surrogate.name;
    for (const double g : outcome.dlogprobs) EXPECT_TRUE(std::isfinite(g)) << surrogate.name;
  }
}

TEST(Losses, OnPolicyPpoIsTheRewardGradient) {
  std::mt19937 random(1);
  Drawn drawn(random, 4);
  drawn.old_logprobs = drawn.logprobs;
  drawn.mask = {1, 1, 1, 1};
  const Outcome outcome = lose({}, drawn);
  for (size_t t = 0; t < 4; ++t) EXPECT_DOUBLE_EQ(outcome.dlogprobs[t], -drawn.advantages[t] / 4);
  EXPECT_EQ(outcome.sums.at("pg_clipfrac"), 0.0);
  EXPECT_EQ(outcome.sums.at("ppo_kl"), 0.0);
}

TEST(Losses, OffPolicySequencesAreMaskedAndCounted) {
  std::mt19937 random(1);
  Drawn drawn(random, 4);
  drawn.mask = {1, 1, 1, 0};
  for (size_t t = 0; t < 4; ++t) drawn.old_logprobs[t] = drawn.logprobs[t] + 0.5F;
  drawn.advantages.assign(4, -1.0);
  LossConfig config;
  config.use_opsm = true;
  Outcome outcome = lose(config, drawn);
  EXPECT_EQ(outcome.sums.at("pg_loss"), 0.0);
  EXPECT_EQ(outcome.sums.at("opsm_clipfrac"), 1.0);
  drawn.advantages.assign(4, 1.0);
  outcome = lose(config, drawn);
  EXPECT_LT(outcome.sums.at("pg_loss"), 0.0);
  EXPECT_EQ(outcome.sums.at("opsm_clipfrac"), 0.0);
}

// top-p makes tokens likelier than the policy has them: on policy by the old log-probs, off by the sampled ones.
TEST(Losses, TrlsOffPolicyMaskSeesWhatTruncatedSamplingChanged) {
  std::mt19937 random(1);
  Drawn drawn(random, 4);
  drawn.mask = {1, 1, 1, 1};
  drawn.old_logprobs = drawn.rollout_logprobs = drawn.logprobs;
  drawn.advantages.assign(4, -1.0);
  drawn.behavior_logprobs = drawn.logprobs;
  for (float& logprob : drawn.behavior_logprobs) logprob += 0.1F;
  LossConfig config;
  config.use_opsm = true;
  EXPECT_GT(lose(config, drawn).sums.at("pg_loss"), 0.0);
  config.use_opsm = false;
  config.off_policy_mask_threshold = 0.05;
  EXPECT_EQ(lose(config, drawn).sums.at("pg_loss"), 0.0);
  EXPECT_DOUBLE_EQ(lose(config, drawn).sums.at("off_policy_mask_frac"), 1.0);
  config.off_policy_mask_threshold = 0.2;
  EXPECT_GT(lose(config, drawn).sums.at("pg_loss"), 0.0);
}

// top-p 0.7 can have a mean weight of 0.9 while the difference to the engine reads 0.
TEST(Losses, TruncatedSamplingIsReportedAlsoWhereItIsNotCorrected) {
  std::mt19937 random(1);
  Drawn drawn(random, 4);
  drawn.mask = {1, 1, 1, 1};
  drawn.old_logprobs = drawn.rollout_logprobs = drawn.logprobs;
  LossConfig config;
  EXPECT_FALSE(lose(config, drawn).sums.contains("tis"));
  config.get_mismatch_metrics = true;
  EXPECT_EQ(lose(config, drawn).sums.at("tis"), 1.0);
  EXPECT_EQ(lose(config, drawn).sums.at("tis_abs"), 0.0);
  EXPECT_EQ(lose(config, drawn).sums.at("ois"), 1.0);
  config.get_mismatch_metrics = false;
  const Outcome untouched = lose(config, drawn);
  drawn.behavior_logprobs = drawn.logprobs;
  for (float& logprob : drawn.behavior_logprobs) logprob += 0.1F;
  const Outcome truncated = lose(config, drawn);
  EXPECT_NEAR(truncated.sums.at("tis"), std::exp(-0.1), 1e-6);
  EXPECT_NEAR(truncated.sums.at("tis_abs"), 1.0 - std::exp(-0.1), 1e-6);
  EXPECT_EQ(truncated.sums.at("train_rollout_logprob_abs_diff"), 0.0);
  EXPECT_EQ(truncated.dlogprobs, untouched.dlogprobs) << "--use-tis alone weighs";
}

// A KL that is only watched: also one that is not finite leaves loss and gradient alone.
TEST(Losses, AtCoefficientZeroTheKlIsAMetric) {
  std::mt19937 random(1);
  const Drawn drawn(random);
  LossInput without = drawn.input();
  without.ref_logprobs = nullptr;
  for (const char* kind : {"k1", "k2", "k3", "low_var_kl", "abs", "k1+"}) {
    const LossConfig config{.kl_loss_type = kind};
    LossSums sums;
    std::vector<double> gradient(drawn.mask.size());
    accumulate_loss(config, without, {gradient.data(), nullptr}, sums);
    EXPECT_FALSE(sums.contains("kl"));
    Outcome outcome = lose(config, drawn);
    EXPECT_NE(outcome.sums.at("kl_loss"), 0.0) << kind;
    EXPECT_EQ(outcome.sums.at("loss"), sums.at("loss")) << kind;
    EXPECT_EQ(outcome.dlogprobs, gradient) << kind;
    Drawn infinite = drawn;
    infinite.ref_logprobs.assign(drawn.mask.size(), -std::numeric_limits<float>::infinity());
    outcome = lose(config, infinite);
    EXPECT_EQ(outcome.sums.at("loss"), sums.at("loss")) << kind;
    EXPECT_EQ(outcome.dlogprobs, gradient) << kind;
  }
}

// Dr.GRPO's entropy_loss is 0.098 where the entropy is 0.5: it is divided by the longest completion.
TEST(LossNormaliser, EntropyAndKlAreTokenMeansUnderEveryAggregation) {
  std::mt19937 random(1);
  const std::vector<Drawn> step = {Drawn(random, 3), Drawn(random, 12), Drawn(random, 7)};
  double entropy = 0.0, kl = 0.0, num_tokens = 0.0;
  for (const Drawn& drawn : step) {
    for (size_t t = 0; t < drawn.mask.size(); ++t) {
      if (drawn.mask[t] == 0) continue;
      entropy += drawn.entropy[t];
      kl += double{drawn.logprobs[t]} - double{drawn.ref_logprobs[t]};
      num_tokens += 1.0;
    }
  }
  const uint8_t removed[] = {0, 0};
  for (const char* mode :
       {"seq-mean-token-mean", "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm"}) {
    LossConfig config{.loss_aggregation = mode, .loss_norm_tokens = 64, .kl_loss_coef = 0.1, .kl_loss_type = "k1"};
    LossNormaliser normaliser(config);
    LossSums sums;
    normaliser.add(removed);
    for (const Drawn& drawn : step) {
      normaliser.add(drawn.mask);
      std::vector<double> gradient(drawn.mask.size());
      accumulate_loss(config, drawn.input(), {gradient.data(), nullptr}, sums);
    }
    EXPECT_NEAR(normaliser.metrics(sums).at("entropy"), entropy / num_tokens, 1e-12) << mode;
    EXPECT_NEAR(normaliser.metrics(sums).at("kl"), kl / num_tokens, 1e-12) << mode;
  }
}

TEST(Losses, SftIsTheMeanNegativeLogLikelihoodOfTokens) {
  const float logprobs[] = {-1.0F, -2.0F, -4.0F};
  const uint8_t mask[] = {1, 0, 1}, short_mask[] = {1};
  const LossConfig config{.loss_type = "sft_loss"};
  check_loss_config(config);
  LossNormaliser normaliser(config);
  normaliser.add(mask);
  normaliser.add(short_mask);
  LossSums sums;
  std::vector<double> gradient(3), short_gradient(1);
  accumulate_loss(config, {.length = 3, .logprobs = logprobs, .mask = mask}, {gradient.data()}, sums);
  accumulate_loss(config, {.length = 1, .logprobs = logprobs, .mask = short_mask}, {short_gradient.data()}, sums);
  EXPECT_DOUBLE_EQ(normaliser.metrics(sums).at("loss"), 2.0);  // (1 + 4 + 1) / 3
  EXPECT_EQ(gradient, (std::vector<double>{-1, 0, -1}));
  EXPECT_DOUBLE_EQ(normaliser.loss_scale(), 1.0 / 3.0);
}

TEST(LossNormaliser, CountsRemovedSamplesAsVimeUnlessToldOtherwise) {
  const uint8_t two[] = {1, 0, 1}, none[] = {0, 0};
  const auto scale = [&](bool per_token, bool count_removed) {
    LossNormaliser normaliser({.calculate_per_token_loss = per_token, .count_removed_samples = count_removed});
    normaliser.add(two);
    normaliser.add(none);
    EXPECT_EQ(normaliser.num_tokens(), 2);
    return normaliser.loss_scale();
  };
  EXPECT_DOUBLE_EQ(scale(false, true), 1.0 / 2);
  EXPECT_DOUBLE_EQ(scale(false, false), 1.0);
  EXPECT_DOUBLE_EQ(scale(true, true), 1.0 / 3);
  EXPECT_DOUBLE_EQ(scale(true, false), 1.0 / 2);
}

TEST(LossNormaliser, OfAStepWithNothingToTrainOnScalesToZero) {
  const uint8_t none[] = {0, 0};
  LossNormaliser normaliser{LossConfig{}};
  EXPECT_EQ(normaliser.loss_scale(), 0.0);
  normaliser.add(none);
  EXPECT_EQ(normaliser.loss_scale(), 0.0);
}

TEST(LossConfig, RowsStandForTheirSurrogateAndAggregation) {
  EXPECT_EQ(loss_aggregation({}), Aggregation::kSampleMean);
  EXPECT_EQ(loss_aggregation({.advantage_estimator = "dapo"}), Aggregation::kTokenMean);
  EXPECT_EQ(loss_aggregation({.advantage_estimator = "dr_grpo"}), Aggregation::kSampleSumNorm);
  EXPECT_EQ(find_surrogate({.advantage_estimator = "gspo"}).ratio_level, RatioLevel::kSequenceMean);
  EXPECT_EQ(find_surrogate({.advantage_estimator = "gspo", .pg_loss_type = "ppo"}).ratio_level, RatioLevel::kToken);
  for (const Estimator& estimator : estimators()) {
    LossConfig config{.advantage_estimator = std::string(estimator.name)};
    config.loss_norm_tokens = 1024;
    EXPECT_NO_THROW(check_loss_config(config)) << estimator.name;
  }
}

// The options have refused it with the flag's name: tests/config/loss_options_test.cc.
TEST(LossConfig, WhatOptionsRefuseIsABug) {
  const std::vector<LossConfig> configs = {
      {.advantage_estimator = "ppo"},
      {.pg_loss_type = "vespo"},
      {.kl_loss_type = "k4"},
      {.loss_aggregation = "mean"},
      {.loss_type = "value_loss"},
      {.tis_mode = "drop"},
      {.eps_clip = -0.1},
      {.eps_clip_c = 0.9},
      {.kl_loss_coef = std::nan("")},
      {.tis_clip = 0.5, .tis_clip_low = 1.0},
      {.loss_aggregation = "token-sum", .calculate_per_token_loss = true},
      {.off_policy_mask_threshold = -1.0},
      {.advantage_estimator = "dr_grpo"},  // without a divisor
  };
  for (size_t i = 0; i < configs.size(); ++i) EXPECT_THROW(check_loss_config(configs[i]), BugError) << "row " << i;
}

}  // namespace
}  // namespace tandem::rl
