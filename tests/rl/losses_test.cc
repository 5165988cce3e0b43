// Losses and their configuration: gradients agree with slopes of the value, and the promises of losses.h hold.
#include "rl/losses.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "tandem/error.h"

namespace tandem::rl {
namespace {

// Draws one random sample and the arrays behind its LossInput.
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
      covariant.push_back(t % 3 == 1);
      low_entropy.push_back(t % 4 == 2);
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
            .advantages = advantages.data(),
            .covariant = covariant.data(),
            .low_entropy = low_entropy.data()};
  }
  std::vector<float> logprobs, old_logprobs, rollout_logprobs, ref_logprobs, entropy;
  std::vector<float> behavior_logprobs;  // empty: nothing was truncated
  std::vector<uint8_t> mask, covariant, low_entropy;
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

// Checks that the slopes to both sides of a token's log-prob agree with the gradient; returns false if a kink lies
// between them.
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
  // CISPO, DPPO and "+" kinds stop a gradient by design, so the golden cases check those.
  for (const char* surrogate : {"ppo", "gspo", "rloo", "reinforce", "sapo", "dro", "clip_cov", "kl_cov"}) {
    for (const char* kl : {"k1", "k2", "k3", "low_var_kl", "abs"}) {
      for (const bool unbiased : {false, true}) {
        SCOPED_TRACE(std::string(surrogate) + " " + kl + (unbiased ? " unbiased" : ""));
        LossConfig config{.pg_loss_type = surrogate, .eps_clip_c = 1.5, .kl_loss_coef = 0.5, .kl_loss_type = kl};
        config.use_unbiased_kl = unbiased;
        config.entropy_coef = 0.1;
        config.use_tis = true;
        config.behavior_kl_coef = 0.2;
        config.top_entropy_quantile = unbiased ? 0.5 : 1.0;
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

// A ratio beyond --max-log-ratio is a constant: the policy term and the KL that is multiplied by it have no gradient
// through it.
TEST(Losses, ABoundedRatioIsAConstantOfTheUnbiasedKlToo) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  int64_t num_tokens = 0, num_smooth = 0;
  for (const char* kl : {"k1", "k2", "k3", "low_var_kl", "abs"}) {
    const LossConfig config{.max_log_ratio = 0.1, .kl_loss_coef = 0.5, .kl_loss_type = kl};
    const Drawn drawn(random, /*length=*/24);
    const Outcome outcome = lose(config, drawn);
    for (size_t t = 0; t < drawn.mask.size(); ++t) {
      if (drawn.mask[t] == 0) continue;
      num_tokens += 1;
      num_smooth += agrees_with_slopes(config, drawn, t, outcome.dlogprobs[t]) ? 1 : 0;
    }
  }
  EXPECT_GT(num_smooth, num_tokens * 9 / 10);
}

// verl clips each log ratio by the sign of its advantage: of a token without one the constant 0 is left.
TEST(Losses, TokensWithoutAnAdvantageAreConstantInTheGeometricMean) {
  const LossConfig config{.pg_loss_type = "geo_mean"};
  std::mt19937 random(3);
  Drawn drawn(random, /*length=*/4);
  drawn.mask.assign(4, 1);
  drawn.advantages = {1.0, 1.0, 0.0, 0.0};
  drawn.logprobs = drawn.old_logprobs;
  const std::vector<double> gradient = {-0.125, -0.125, 0.0, 0.0};
  EXPECT_EQ(lose(config, drawn).dlogprobs, gradient);
  drawn.old_logprobs[3] -= 3.0F;
  const Outcome moved = lose(config, drawn);
  EXPECT_EQ(moved.dlogprobs, gradient);
  EXPECT_EQ(moved.sums.at("pg_clipfrac"), 0.0);
}

// TRL takes the sample's ratio and weight over all of its tokens, and then the terms of those of high entropy.
TEST(Losses, TokensOfLowEntropyStayInTheRatioOfTheirSample) {
  std::mt19937 random(4);
  Drawn drawn(random);
  std::vector<size_t> kept;
  for (size_t t = 0; t < drawn.mask.size(); ++t) {
    drawn.behavior_logprobs.push_back(drawn.old_logprobs[t] + (drawn.low_entropy[t] != 0 ? 0.3F : 0.1F));
    if (drawn.mask[t] != 0 && drawn.low_entropy[t] == 0) kept.push_back(t);
  }
  const auto lose_with = [&](const char* surrogate, double quantile) {
    return lose({.pg_loss_type = surrogate, .top_entropy_quantile = quantile, .use_tis = true}, drawn);
  };
  const Outcome all = lose_with("vespo", 1.0), some = lose_with("vespo", 0.5);
  for (const size_t t : kept) {
    EXPECT_NE(all.dlogprobs[t], 0.0) << t;
    EXPECT_EQ(some.dlogprobs[t], all.dlogprobs[t]) << t;
  }
  // In the geometric mean each token's term is the same.
  const auto num_trained = static_cast<double>(std::ranges::count(drawn.mask, 1));
  EXPECT_NEAR(lose_with("geo_mean", 0.5).sums.at("pg_loss"),
              static_cast<double>(kept.size()) / num_trained * lose_with("geo_mean", 1.0).sums.at("pg_loss"), 1e-12);
}

// With the ratio, the expected gradient on policy of k1 and k3 is that of the reverse KL, sum p log(p / ref); without
// it that of k3 is the forward KL's. With a "+" the gradient of k2 is the reverse KL's already, and must not be counted
// twice. k2 and abs have another gradient with the ratio: docs/LOSSES.md has the numbers. p = softmax(z), so
// d KL / d z_i = p_i (log(p_i / ref_i) - KL).
TEST(Losses, TheUnbiasedKlHasTheGradientOfTheReverseKl) {
  const double p[] = {0.6, 0.3, 0.1}, ref[] = {0.2, 0.3, 0.5};
  double reverse = 0.0;
  for (int i = 0; i < 3; ++i) reverse += p[i] * std::log(p[i] / ref[i]);
  // This is the sum over sampled tokens j of p_j dloss/dlogp_j dlogp_j/dz_i, where dlogp_j/dz_i is [i = j] - p_i.
  const auto expected_gradient = [&](const LossConfig& config) {
    std::vector<double> gradient(3, 0.0);
    for (int j = 0; j < 3; ++j) {
      const float logprob = std::log(static_cast<float>(p[j])), of_reference = std::log(static_cast<float>(ref[j]));
      const uint8_t mask = 1;
      const double advantage = 0.0;
      double dlogprob = 0.0;
      LossSums sums;
      accumulate_loss(config,
                      {.length = 1,
                       .logprobs = &logprob,
                       .old_logprobs = &logprob,
                       .ref_logprobs = &of_reference,
                       .mask = &mask,
                       .advantages = &advantage},
                      {&dlogprob, nullptr}, sums);
      for (int i = 0; i < 3; ++i) gradient[static_cast<size_t>(i)] += p[j] * dlogprob * ((i == j ? 1.0 : 0.0) - p[i]);
    }
    return gradient;
  };
  for (const char* kind : {"k1", "k3", "low_var_kl", "k1+", "k2+", "k3+", "low_var_kl+", "abs+"}) {
    const std::vector<double> gradient = expected_gradient({.kl_loss_coef = 1.0, .kl_loss_type = kind});
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(gradient[i], p[i] * (std::log(p[i] / ref[i]) - reverse), 1e-6) << kind << " " << i;
    }
  }
  const std::vector<double> forward =
      expected_gradient({.kl_loss_coef = 1.0, .kl_loss_type = "k3", .use_unbiased_kl = false});
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(forward[i], p[i] - ref[i], 1e-6) << i;
  const std::vector<double> alone =
      expected_gradient({.kl_loss_coef = 1.0, .kl_loss_type = "k2", .use_unbiased_kl = false});
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(alone[i], p[i] * (std::log(p[i] / ref[i]) - reverse), 1e-6) << i;
  const double of_k2[] = {0.427, -0.297, -0.130}, of_abs[] = {0.467, -0.396, -0.071},
               of_abs_alone[] = {0.3, -0.15, -0.15};
  const auto expect_rounded = [&](const LossConfig& config, const double(&expected)[3]) {
    const std::vector<double> gradient = expected_gradient(config);
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(gradient[i], expected[i], 5e-4) << config.kl_loss_type << " " << i;
  };
  expect_rounded({.kl_loss_coef = 1.0, .kl_loss_type = "k2"}, of_k2);
  expect_rounded({.kl_loss_coef = 1.0, .kl_loss_type = "abs"}, of_abs);
  expect_rounded({.kl_loss_coef = 1.0, .kl_loss_type = "abs", .use_unbiased_kl = false}, of_abs_alone);
}

TEST(Losses, RejectedTokensLeaveWeightsAndDenominators) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (const char* level : {"token", "sequence"}) {
    for (const char* aggregation : {"seq-mean-token-mean", "token-mean"}) {
      LossConfig config{.loss_aggregation = aggregation, .kl_loss_coef = 0.1, .entropy_coef = 0.01, .use_tis = true};
      config.tis_clip = 1.2;
      config.tis_clip_low = 0.8;
      config.tis_level = level;
      config.tis_mode = "reject";
      std::vector<Drawn> step;
      for (int i = 0; i < 6; ++i) step.emplace_back(random);
      for (float& logprob : step[0].rollout_logprobs) logprob = -9.0F;  // all of its tokens are rejected
      step[1].rollout_logprobs = step[1].old_logprobs;                  // none of its tokens is rejected
      LossNormaliser normaliser(config), without(config);
      std::vector<Drawn> kept = step;
      std::vector<int64_t> num_rejected;
      for (size_t i = 0; i < step.size(); ++i) {
        num_rejected.push_back(reject_tokens(config, step[i].input(), kept[i].mask));
        normaliser.add(kept[i].mask, num_rejected.back());
        without.add(kept[i].mask);
      }
      EXPECT_EQ(std::count(kept[0].mask.begin(), kept[0].mask.end(), 1), 0);
      EXPECT_EQ(kept[1].mask, step[1].mask);
      // The result is as if the rejected tokens had never been in the loss mask, with the weights of "mask" inside the
      // bounds.
      LossConfig masking = config;
      masking.tis_mode = "mask";
      LossSums rejected_sums, masked_sums;
      double num_in_all = 0.0, num_out = 0.0;
      for (size_t i = 0; i < step.size(); ++i) {
        std::vector<double> a(step[i].mask.size()), b(a), c(a), d(a);
        LossInput input = kept[i].input();
        input.entropy_share = normaliser.entropy_share();
        accumulate_loss(masking, input, {b.data(), d.data()}, masked_sums);
        input.num_rejected = num_rejected[i];
        accumulate_loss(config, input, {a.data(), c.data()}, rejected_sums);
        EXPECT_EQ(a, b);
        EXPECT_EQ(c, d);
        for (size_t t = 0; t < a.size(); ++t) {
          if (step[i].mask[t] != 0 && kept[i].mask[t] == 0) EXPECT_TRUE(a[t] == 0.0 && c[t] == 0.0);
        }
        num_out += static_cast<double>(num_rejected[i]);
        num_in_all += static_cast<double>(std::count(step[i].mask.begin(), step[i].mask.end(), 1));
      }
      std::map<std::string, double> metrics = normaliser.metrics(rejected_sums);
      EXPECT_DOUBLE_EQ(metrics.at("tis_rejected_frac"), num_out / num_in_all);
      EXPECT_EQ(metrics.at("tis_clipfrac"), 0.0);
      metrics.erase("tis_rejected_frac");
      EXPECT_EQ(metrics, without.metrics(masked_sums));
      masking.use_tis = false;
      std::vector<uint8_t> untouched = step[0].mask;
      EXPECT_EQ(reject_tokens(masking, step[0].input(), untouched), 0);
      EXPECT_EQ(untouched, step[0].mask);
    }
  }
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

// The metric of a row whose ratio is the product over the sample does not grow with the sample's length.
TEST(Losses, PpoKlIsAMeanOverTokensUnderEverySurrogate) {
  std::mt19937 random(1);
  Drawn drawn(random, 4);
  drawn.mask = {1, 1, 1, 0};
  double expected = 0.0;
  for (size_t t = 0; t < 3; ++t) expected += (double{drawn.old_logprobs[t]} - double{drawn.logprobs[t]}) / 3.0;
  for (const Surrogate& surrogate : surrogates()) {
    LossConfig config{.pg_loss_type = std::string(surrogate.name), .loss_aggregation = "seq-mean-token-mean"};
    EXPECT_NEAR(lose(config, drawn).sums.at("ppo_kl"), expected, 1e-12) << surrogate.name;
    config.loss_aggregation = "token-mean";
    EXPECT_NEAR(lose(config, drawn).sums.at("ppo_kl"), 3.0 * expected, 1e-12) << surrogate.name;
  }
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

// The difference is that of the newest tokens alone, and exactly 0 where these are the trainer's own.
TEST(Losses, OnPolicyTokensAreComparedApart) {
  std::mt19937 random(1);
  Drawn drawn(random, 4);
  drawn.mask = {1, 1, 1, 0};
  drawn.rollout_logprobs[2] = drawn.logprobs[2];
  LossNormaliser normaliser({});
  normaliser.add(drawn.mask);
  const auto metrics_of = [&](bool is_first_step) {
    LossInput input = drawn.input();
    input.on_policy_begin = 2;
    input.is_first_step = is_first_step;
    std::vector<double> gradient(4);
    LossSums sums;
    accumulate_loss({}, input, {gradient.data(), nullptr}, sums);
    return normaliser.metrics(sums);
  };
  EXPECT_EQ(metrics_of(true).at("on_policy_logprob_abs_diff"), 0.0);
  EXPECT_DOUBLE_EQ(metrics_of(true).at("on_policy_token_share"), 1.0 / 3.0);
  EXPECT_GT(metrics_of(true).at("train_rollout_logprob_abs_diff"), 0.0);
  EXPECT_FALSE(metrics_of(false).contains("on_policy_logprob_abs_diff"));
  drawn.rollout_logprobs[2] -= 0.5F;
  EXPECT_NEAR(metrics_of(true).at("on_policy_logprob_abs_diff"), 0.5, 1e-6);
}

TEST(Losses, AVetoedSampleHasNoTermAndStillCounts) {
  std::mt19937 random(1);
  Drawn drawn(random, 4);
  drawn.mask = {1, 1, 1, 0};
  drawn.old_logprobs = drawn.rollout_logprobs;
  drawn.rollout_logprobs[1] = drawn.old_logprobs[1] + 3.0F;  // exp(old - sampled) is 0.0498
  LossConfig config{.kl_loss_coef = 0.1, .entropy_coef = 0.1};
  config.behavior_kl_coef = 0.1;
  for (const double threshold : {0.04, 0.06}) {
    config.tis_veto = threshold;
    const Outcome outcome = lose(config, drawn);
    const bool is_out = threshold > 0.05;
    EXPECT_EQ(outcome.sums.at("tis_veto_frac"), is_out ? 1.0 : 0.0);
    EXPECT_EQ(outcome.sums.at("loss") == 0.0, is_out);
    for (size_t t = 0; t < 3; ++t) {
      EXPECT_EQ(outcome.dlogprobs[t] == 0.0, is_out);
      EXPECT_EQ(outcome.dentropy[t] == 0.0, is_out);
    }
    EXPECT_GT(outcome.sums.at("train_rollout_logprob_abs_diff"), 0.0);
  }
  drawn.mask[1] = 0;
  EXPECT_NE(lose(config, drawn).sums.at("loss"), 0.0) << "a token that is not trained has no say";
}

// Rejection would take the token away that the veto is about, wherever its lower bound is the higher one. slime's
// mis.py computes the veto with the loss mask from before rejection.
TEST(Losses, TheVetoLooksBeforeRejection) {
  std::mt19937 random(1);
  Drawn drawn(random, 4);
  drawn.mask = {1, 1, 1, 0};
  drawn.old_logprobs = drawn.rollout_logprobs;
  drawn.rollout_logprobs[1] = drawn.old_logprobs[1] + 3.0F;  // exp(old - sampled) is 0.0498
  LossConfig config{.kl_loss_coef = 0.1, .entropy_coef = 0.1, .use_tis = true, .tis_clip_low = 0.5};
  for (const char* level : {"token", "sequence", "geometric"}) {
    for (const double threshold : {0.04, 0.06}) {
      SCOPED_TRACE(std::string(level) + " " + std::to_string(threshold));
      config.tis_level = level;
      config.tis_veto = threshold;
      config.tis_mode = "mask";
      const Outcome masked = lose(config, drawn);
      config.tis_mode = "reject";
      Drawn kept = drawn;
      const int64_t num_rejected = reject_tokens(config, drawn.input(), kept.mask);
      const Outcome rejected = lose(config, kept);
      const bool is_out = threshold > 0.05;
      EXPECT_EQ(num_rejected > 0, !is_out);
      EXPECT_EQ(kept.mask == drawn.mask, is_out) << "a vetoed sample stays in the denominators";
      if (!is_out) continue;
      EXPECT_EQ(rejected.sums.at("tis_veto_frac"), 1.0);
      EXPECT_EQ(rejected.sums.at("tis_veto_frac"), masked.sums.at("tis_veto_frac"));
      EXPECT_EQ(rejected.sums.at("loss"), 0.0);
      EXPECT_EQ(rejected.dlogprobs, std::vector<double>(4, 0.0));
      EXPECT_EQ(rejected.dentropy, std::vector<double>(4, 0.0));
    }
  }
}

// top-p makes tokens likelier than the policy does: the sample is on policy by the old log-probs, off policy by the
// sampled ones.
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

// A KL that is only a metric leaves loss and gradient alone, even if it is not finite.
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
    LossConfig config{.loss_aggregation = mode,
                      .loss_norm_tokens = 64,
                      .kl_loss_coef = 0.1,
                      .kl_loss_type = "k1",
                      .use_unbiased_kl = false};
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

// The options refuse it earlier with the flag's name: tests/config/loss_options_test.cc.
TEST(LossConfig, WhatOptionsRefuseIsABug) {
  const std::vector<LossConfig> configs = {
      {.advantage_estimator = "ppo"},
      {.pg_loss_type = "huber"},
      {.reward_aggregation = "sum"},
      {.vespo_lambda_neg = 0.0},
      {.clip_cov_ratio = 0.0},
      {.clip_cov_lb = 5.0},
      {.kl_cov_ratio = 1.1},
      {.kl_cov_coef = -0.1},
      {.top_entropy_quantile = 0.0},
      {.pg_loss_type = "kl_cov", .top_entropy_quantile = 0.5},
      {.pg_loss_type = "vespo", .use_tis = true, .tis_level = "sequence"},
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
