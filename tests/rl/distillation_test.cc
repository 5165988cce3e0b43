// What a teacher's log-probs make of advantages, and the term of its whole distribution in the loss, agree with
// formulas that are written apart from src/rl.
#include "rl/distillation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/json.h"
#include "rl/advantages.h"
#include "rl/losses.h"
#include "tandem/error.h"
#include "tests/golden/golden.h"

namespace tandem::rl {
namespace {

constexpr float kUnread = std::numeric_limits<float>::quiet_NaN();

// Draws two groups of three. Log-probs of tokens that are not trained are NaN: nothing may read them.
std::vector<Sample> random_samples(std::mt19937& random) {
  std::uniform_real_distribution<float> logprob(-4.0F, 0.0F);
  std::vector<Sample> samples(6);
  for (size_t i = 0; i < samples.size(); ++i) {
    Sample& sample = samples[i];
    sample.group_id = i / 3;
    sample.sample_id = i;
    sample.reward = static_cast<double>(i % 3);
    sample.remove = i == 4;
    sample.completion.resize(2 + random() % 6);
    for (size_t t = 0; t < sample.completion.size(); ++t) {
      sample.loss_mask.push_back(t == 0 || random() % 4 != 0);
      const bool counts = sample.is_trained(t);
      sample.rollout_logprobs.push_back(counts ? logprob(random) : kUnread);
      sample.teacher_logprobs.push_back(counts ? logprob(random) : kUnread);
    }
  }
  return samples;
}

double sampled_kl(const Sample& sample, size_t t) {
  return static_cast<double>(sample.rollout_logprobs[t]) - static_cast<double>(sample.teacher_logprobs[t]);
}

double advantage_of_token(const Sample& sample, size_t t) {
  return sample.advantages.at(sample.advantages.size() == 1 ? 0 : t);
}

LossConfig with_teacher(double kl_coef, bool use_task_rewards) {
  LossConfig config;
  config.opd.is_on = true;
  config.opd.kl_coef = kl_coef;
  config.opd.use_task_rewards = use_task_rewards;
  return config;
}

TEST(Distillation, EachTrainedTokenLosesItsReverseKlBesideTheRewardOrAlone) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const std::vector<Sample> drawn = random_samples(random);
  std::vector<Sample> plain = drawn;
  assign_advantages({}, plain);
  for (const bool use_task_rewards : {true, false}) {
    std::vector<Sample> taught = drawn;
    const AdvantageParts parts = assign_advantages(with_teacher(0.3, use_task_rewards), taught);
    double task = 0.0, teacher = 0.0, count = 0.0;
    for (size_t i = 0; i < taught.size(); ++i) {
      for (size_t t = 0; t < taught[i].completion.size(); ++t) {
        const double own = use_task_rewards ? advantage_of_token(plain[i], t) : 0.0;
        const bool counts = taught[i].is_trained(t);
        EXPECT_NEAR(advantage_of_token(taught[i], t), counts ? own - 0.3 * sampled_kl(taught[i], t) : own, 1e-12)
            << i << " " << t;
        if (!counts) continue;
        task += std::abs(own);
        teacher += std::abs(0.3 * sampled_kl(taught[i], t));
        count += 1.0;
      }
    }
    EXPECT_NEAR(parts.task, task / count, 1e-12);
    EXPECT_NEAR(parts.teacher, teacher / count, 1e-12);
    EXPECT_NEAR(parts.teacher_share(), teacher / (task + teacher), 1e-12);
  }
  EXPECT_EQ(AdvantageParts().teacher_share(), 0.0);
}

// As in slime, the teacher's part is there before advantages are whitened.
TEST(Distillation, IsWhitenedWithTheRest) {
  std::mt19937 random(3);
  std::vector<Sample> samples = random_samples(random);
  LossConfig config = with_teacher(1.0, false);
  config.normalize_advantages = true;
  assign_advantages(config, samples);
  double sum = 0.0, squares = 0.0, count = 0.0;
  for (const Sample& sample : samples) {
    for (size_t t = 0; t < sample.completion.size(); ++t) {
      if (!sample.is_trained(t)) continue;
      sum += sample.advantages[t];
      squares += sample.advantages[t] * sample.advantages[t];
      count += 1.0;
    }
  }
  EXPECT_NEAR(sum, 0.0, 1e-9);
  EXPECT_NEAR(squares / (count - 1.0), 1.0, 1e-6);
}

TEST(Distillation, AtCoefficientZeroAdvantagesAreThoseOfTheRewards) {
  std::mt19937 random(4);
  std::vector<Sample> plain = random_samples(random), watched = plain;
  assign_advantages({}, plain);
  const AdvantageParts parts = assign_advantages(with_teacher(0.0, true), watched);
  EXPECT_EQ(parts.teacher_share(), 0.0);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(watched[i].advantages, plain[i].advantages);
}

TEST(Distillation, ATeacherWithoutANumberIsTheEnvironmentsFault) {
  std::mt19937 random(5);
  std::vector<Sample> samples = random_samples(random);
  samples[0].teacher_logprobs[0] = -std::numeric_limits<float>::infinity();
  EXPECT_THROW(assign_advantages(with_teacher(1.0, true), samples), EnvironmentError);
  samples[0].teacher_logprobs.clear();
  EXPECT_THROW(assign_advantages(with_teacher(1.0, true), samples), BugError);
}

// The gradient of the loss by a token's divergence is what multiplies it in the loss, whatever the aggregation.
TEST(Distillation, TheDivergenceIsATermOfTheLossLikeTheKl) {
  for (const std::string_view aggregation : aggregation_names()) {
    LossConfig config = with_teacher(0.0, true);
    config.opd.loss_coef = 0.25;
    config.loss_aggregation = aggregation;
    config.loss_norm_tokens = 7.0;
    const std::vector<float> logprobs = {-1.0F, -2.0F, -0.5F, -3.0F}, teacher = {-1.5F, -1.0F, -2.0F, -9.0F},
                             divergence = {0.5F, 0.25F, 2.0F, 100.0F}, entropy(4, 1.0F);
    const std::vector<uint8_t> mask = {1, 1, 1, 0};
    const std::vector<double> advantages(4, 0.0);
    std::vector<double> dlogprobs(4), ddivergence(4, 9.0);
    LossNormaliser normaliser(config);
    normaliser.add(mask);
    normaliser.add(mask);  // a second sample, which adds nothing to the sums
    LossInput input = {.length = 4,
                       .logprobs = logprobs.data(),
                       .old_logprobs = logprobs.data(),
                       .teacher_logprobs = teacher.data(),
                       .divergence = divergence.data(),
                       .entropy = entropy.data(),
                       .mask = mask.data(),
                       .advantages = advantages.data()};
    LossSums sums;
    accumulate_loss(config, input, {.dlogprobs = dlogprobs.data(), .ddivergence = ddivergence.data()}, sums);
    const std::map<std::string, double> metrics = normaliser.metrics(sums);
    double loss = 0.0;
    for (size_t t = 0; t < 4; ++t) loss += ddivergence[t] * normaliser.loss_scale() * double{divergence[t]};
    EXPECT_NEAR(metrics.at("loss"), loss, 1e-12) << aggregation;
    EXPECT_NEAR(metrics.at("opd_loss"), loss / 0.25, 1e-12) << aggregation;
    EXPECT_GT(loss, 0.0);
    EXPECT_EQ(ddivergence[3], 0.0) << "the token is masked";
    const double count = aggregation == "token-mean" ? 6.0 : 2.0 * 3.0;
    EXPECT_NEAR(metrics.at("opd_reverse_kl"), (0.5 - 1.0 + 1.5) / count, 1e-12) << aggregation;
    // Before the divergence is known the gradient is the same, and there is no sum of it.
    const std::vector<double> before = ddivergence;
    LossSums unknown;
    input.divergence = nullptr;
    accumulate_loss(config, input, {.dlogprobs = dlogprobs.data(), .ddivergence = ddivergence.data()}, unknown);
    EXPECT_EQ(ddivergence, before);
    EXPECT_FALSE(unknown.contains("opd_loss"));
  }
}

// The loss that TRL makes of a sequence with masked tokens (GKDTrainer's batchmean) is the mean over the others.
TEST(Distillation, TheLossOfMaskedTokensIsTrls) {
  const base::Json golden = base::read_json_file(golden::directory() + "/distillation/cases.json");
  ASSERT_EQ(golden.at("masked").size(), 30U);
  for (const base::Json& one : golden.at("masked")) {
    const auto rows = std::ranges::find_if(golden.at("cases"), [&](const base::Json& rows) {
      return rows.at("beta") == one.at("beta") && rows.at("temperature") == one.at("temperature") &&
             rows.at("top_k") == 0;
    });
    ASSERT_NE(rows, golden.at("cases").end());
    const auto divergence = rows->at("divergence").get<std::vector<float>>();
    const auto mask = one.at("mask").get<std::vector<uint8_t>>();
    const std::vector<float> logprobs(mask.size(), -1.0F);
    const std::vector<double> none(mask.size(), 0.0);
    std::vector<double> dlogprobs(mask.size()), ddivergence(mask.size());
    LossConfig config = with_teacher(0.0, false);
    config.opd.loss_coef = 1.0;
    config.loss_aggregation = "token-mean";
    LossNormaliser normaliser(config);
    normaliser.add(mask);
    LossSums sums;
    accumulate_loss(config,
                    {.length = static_cast<int64_t>(mask.size()),
                     .logprobs = logprobs.data(),
                     .old_logprobs = logprobs.data(),
                     .teacher_logprobs = logprobs.data(),
                     .divergence = divergence.data(),
                     .mask = mask.data(),
                     .advantages = none.data()},
                    {.dlogprobs = dlogprobs.data(), .ddivergence = ddivergence.data()}, sums);
    const std::map<std::string, double> metrics = normaliser.metrics(sums);
    const auto loss = one.at("loss").get<double>();
    EXPECT_NEAR(metrics.at("opd_loss"), loss, 1e-6 * (1.0 + loss)) << one.dump();
    EXPECT_NEAR(metrics.at("loss"), loss, 1e-6 * (1.0 + loss)) << one.dump();
  }
}

// The draw is a function of seed and group: its share is that of the flag, and other seeds and groups are other draws.
TEST(GivenAnswers, AreDrawnBySeedAndGroup) {
  OpdConfig config;
  config.is_on = true;
  constexpr uint64_t kGroups = 20'000;
  const auto drawn = [&](uint64_t seed) {
    std::vector<bool> given;
    for (uint64_t group = 0; group < kGroups; ++group) given.push_back(takes_answer(config, seed, group));
    return given;
  };
  const auto share = [](const std::vector<bool>& given) {
    return static_cast<double>(std::ranges::count(given, true)) / static_cast<double>(given.size());
  };
  for (const double on_policy : {0.0, 0.1, 0.5, 0.75, 1.0}) {
    config.on_policy_share = on_policy;
    // Five standard deviations of a share of 20000 draws are below 0.018.
    EXPECT_NEAR(share(drawn(42)), 1.0 - on_policy, on_policy == 0.0 || on_policy == 1.0 ? 0.0 : 0.018);
  }
  config.on_policy_share = 0.5;
  const std::vector<bool> one = drawn(42), other = drawn(43);
  EXPECT_EQ(one, drawn(42));
  double equal = 0.0, repeats = 0.0;
  for (size_t i = 0; i < one.size(); ++i) equal += one[i] == other[i] ? 1.0 : 0.0;
  for (size_t i = 1; i < one.size(); ++i) repeats += one[i] == one[i - 1] ? 1.0 : 0.0;
  EXPECT_NEAR(equal / kGroups, 0.5, 0.018);
  EXPECT_NEAR(repeats / kGroups, 0.5, 0.018);
  // A larger share keeps the groups that a smaller one samples.
  config.on_policy_share = 0.75;
  const std::vector<bool> more = drawn(42);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i] || !more[i]);
  config.is_on = false;
  EXPECT_FALSE(takes_answer(config, 42, 0));
}

// A step of one sampled and one given sample, against the formula in double: the given one has the divergence alone,
// and what compares log-probs is a mean over the sampled one.
TEST(GivenAnswers, HaveTheDivergenceAloneInTheLoss) {
  for (const std::string_view aggregation : aggregation_names()) {
    LossConfig config = with_teacher(1.0, true);
    config.opd.loss_coef = 0.25;
    config.opd.on_policy_share = 0.5;
    config.entropy_coef = 0.1;
    config.kl_loss_coef = 0.2;
    config.use_tis = true;
    config.behavior_kl_coef = 0.3;
    config.tis_veto = 1e-9;
    config.loss_aggregation = aggregation;
    config.loss_norm_tokens = 7.0;
    const std::vector<float> logprobs = {-1.0F, -2.0F, -0.5F}, rollout = {-1.25F, -2.0F, -0.5F},
                             teacher = {-1.5F, -1.0F, -2.0F}, reference = {-1.0F, -1.0F, -1.0F},
                             divergence = {0.5F, 0.25F, 2.0F}, entropy(3, 1.0F);
    const std::vector<uint8_t> mask = {1, 1, 1}, given_mask = {1, 1};
    const std::vector<double> advantages(3, 0.5), none(2, 0.0);
    LossNormaliser normaliser(config);
    normaliser.add(mask);
    normaliser.add(given_mask, 0, /*is_given=*/true);
    LossSums sampled, given;
    std::vector<double> dlogprobs(3, 9.0), dentropy(3, 9.0), ddivergence(3, 9.0);
    const LossGradient gradient = {
        .dlogprobs = dlogprobs.data(), .dentropy = dentropy.data(), .ddivergence = ddivergence.data()};
    accumulate_loss(config,
                    {.length = 3,
                     .logprobs = logprobs.data(),
                     .old_logprobs = rollout.data(),
                     .rollout_logprobs = rollout.data(),
                     .ref_logprobs = reference.data(),
                     .teacher_logprobs = teacher.data(),
                     .divergence = divergence.data(),
                     .entropy = entropy.data(),
                     .mask = mask.data(),
                     .advantages = advantages.data()},
                    gradient, sampled);
    LossInput input = {.length = 2,
                       .logprobs = logprobs.data(),
                       .ref_logprobs = reference.data(),
                       .divergence = divergence.data(),
                       .entropy = entropy.data(),
                       .mask = given_mask.data(),
                       .advantages = none.data()};
    input.is_given = true;
    std::vector<uint8_t> kept = given_mask;
    LossConfig rejecting = config;
    rejecting.tis_mode = "reject";
    EXPECT_EQ(reject_tokens(rejecting, input, kept), 0);
    accumulate_loss(config, input, gradient, given);
    for (size_t t = 0; t < 2; ++t) {
      EXPECT_EQ(dlogprobs[t], 0.0);
      EXPECT_EQ(dentropy[t], 0.0);
    }
    EXPECT_NEAR(given.at("loss"), 0.25 * given.at("opd_loss"), 1e-12) << aggregation;
    EXPECT_NEAR(given.at("opd_loss"), ddivergence[0] / 0.25 * 0.75, 1e-12) << aggregation;
    EXPECT_GT(ddivergence[0], 0.0);
    EXPECT_EQ(given.at("pg_loss"), 0.0);
    LossSums both = sampled;
    for (const auto& [name, sum] : given) both[name] += sum;
    const std::map<std::string, double> metrics = normaliser.metrics(both);
    EXPECT_NEAR(metrics.at("train_rollout_logprob_abs_diff"), 0.25 / 3.0, 1e-12) << aggregation;
    EXPECT_NEAR(metrics.at("opd_reverse_kl"), (0.5 - 1.0 + 1.5) / 3.0, 1e-12) << aggregation;
    EXPECT_NEAR(metrics.at("entropy"), 1.0, 1e-12) << aggregation;
    EXPECT_NEAR(metrics.at("opd_loss"), (sampled.at("opd_loss") + given.at("opd_loss")) * normaliser.loss_scale(),
                1e-12);
  }
}

}  // namespace
}  // namespace tandem::rl
