// Every flag of the loss does something: a flag that may change a number changes the advantages, the gradient or a
// metric of a made-up rollout that is off policy, was sampled from a truncated distribution and has a reference.
#include "config/loss_options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "options/options.h"
#include "rl/advantages.h"
#include "rl/losses.h"
#include "rl/reward_shaping.h"
#include "rl/token_choice.h"
#include "tandem/error.h"
#include "tests/base/thrown.h"

namespace tandem::config {
namespace {

using Arguments = std::vector<std::string>;

LossOptions parsed_losses(const Arguments& arguments) {
  LossOptions loss;
  options::Options options;
  loss.visit(options);
  options.parse(arguments);
  loss.check();
  if (loss.loss.loss_norm_tokens == 0.0) loss.loss.loss_norm_tokens = 64.0;
  loss.loss.max_response_tokens = 8;
  rl::check_loss_config(loss.loss);
  return loss;
}

// Holds four groups of four samples, with the log-probs that a trainer would know of them.
struct MadeUpRollout {
  MadeUpRollout() {
    std::mt19937 random(7);
    std::normal_distribution<float> noise(0.0F, 0.2F);
    const auto around = [&](const std::vector<float>& values) {
      std::vector<float> result;
      for (const float value : values) result.push_back(value + noise(random));
      return result;
    };
    for (size_t i = 0; i < 16; ++i) {
      rl::Sample sample;
      sample.group_id = i / 4;
      sample.reward = static_cast<double>(random() % 5) + static_cast<double>(i / 4);
      sample.completion.resize(2 + random() % 6);
      for (size_t t = 0; t < sample.completion.size(); ++t) sample.loss_mask.push_back(t == 0 || random() % 4 != 0);
      sample.remove = i == 5;
      sample.status = i % 3 == 0 ? rl::SampleStatus::kTruncated : rl::SampleStatus::kCompleted;
      std::vector<float> current;
      for (size_t t = 0; t < sample.completion.size(); ++t) current.push_back(-0.5F - std::abs(noise(random)) * 3);
      old.push_back(around(current));
      sampled.push_back(around(old.back()));
      reference.push_back(around(current));
      sample.teacher_logprobs = around(current);
      entropy.emplace_back();
      for (size_t t = 0; t < current.size(); ++t)
        entropy.back().push_back(0.4F + 0.02F * static_cast<float>((7 * i + 3 * t) % 11));
      sample.rollout_logprobs = old.back();
      sample.versions = {{.begin = 0, .version = 1}, {.begin = 1, .version = 2}};
      sample.ref_logprobs = reference.back();
      logprobs.push_back(std::move(current));
      samples.push_back(std::move(sample));
    }
  }
  // Returns what the trainer takes for the old log-probs: in a first optimizer step the proximal ones are the present.
  const float* old_of(const rl::LossConfig& config, size_t i) const {
    return config.old_logprobs == "proximal" ? logprobs[i].data() : old[i].data();
  }
  std::vector<rl::Sample> samples;
  std::vector<std::vector<float>> logprobs, old, sampled, reference, entropy;
};

struct Outcome {
  std::vector<double> gradients;
  std::map<std::string, double> metrics;
  bool operator==(const Outcome&) const = default;
};

std::vector<double> advantages_of(const rl::Sample& sample) {
  if (sample.advantages.size() != 1) return sample.advantages;
  return std::vector<double>(sample.completion.size(), sample.advantages[0]);
}

std::vector<rl::TokenChoice> chosen_tokens(const rl::LossConfig& loss, const MadeUpRollout& rollout,
                                           const std::vector<std::vector<uint8_t>>& masks) {
  std::vector<std::vector<double>> advantages;
  std::vector<rl::ChoiceInput> inputs;
  for (const rl::Sample& sample : rollout.samples) advantages.push_back(advantages_of(sample));
  for (size_t i = 0; i < masks.size(); ++i) {
    inputs.push_back({.sample_id = i,
                      .mask = masks[i],
                      .logprobs = rollout.logprobs[i].data(),
                      .old_logprobs = rollout.old_of(loss, i),
                      .advantages = advantages[i].data(),
                      .entropy = rollout.entropy[i].data()});
  }
  return rl::choose_tokens(loss, inputs, {.seed = 1, .step = 0});
}

Outcome outcome_of(const LossOptions& options, bool was_truncated) {
  MadeUpRollout rollout;
  rl::mask_older_tokens(options.loss, /*version=*/2, rollout.samples);
  rl::remove_truncated(options.loss, rollout.samples);
  rl::assign_advantages(options.loss, rollout.samples);
  rl::LossNormaliser normaliser(options.loss);
  std::vector<std::vector<uint8_t>> masks;
  std::vector<int64_t> num_rejected;
  for (size_t i = 0; i < rollout.samples.size(); ++i) {
    const rl::Sample& sample = rollout.samples[i];
    std::vector<uint8_t>& mask = masks.emplace_back(sample.loss_mask);
    if (sample.remove) std::ranges::fill(mask, uint8_t{0});
    num_rejected.push_back(rl::reject_tokens(options.loss,
                                             {.length = static_cast<int64_t>(mask.size()),
                                              .old_logprobs = rollout.old_of(options.loss, i),
                                              .rollout_logprobs = rollout.old[i].data(),
                                              .behavior_logprobs = was_truncated ? rollout.sampled[i].data() : nullptr},
                                             mask));
    normaliser.add(mask, num_rejected.back());
  }
  const std::vector<rl::TokenChoice> choices = chosen_tokens(options.loss, rollout, masks);
  rl::LossSums sums;
  Outcome outcome;
  for (size_t i = 0; i < rollout.samples.size(); ++i) {
    const rl::Sample& sample = rollout.samples[i];
    const size_t length = sample.completion.size();
    const std::vector<uint8_t>& mask = masks[i];
    const std::vector<double> advantages = advantages_of(sample);
    std::vector<double> dlogprobs(length), dentropy(length), ddivergence(length);
    rl::accumulate_loss(options.loss,
                        {.length = static_cast<int64_t>(length),
                         .logprobs = rollout.logprobs[i].data(),
                         .old_logprobs = rollout.old_of(options.loss, i),
                         .rollout_logprobs = rollout.old[i].data(),
                         .behavior_logprobs = was_truncated ? rollout.sampled[i].data() : nullptr,
                         .ref_logprobs = options.needs_reference() ? rollout.reference[i].data() : nullptr,
                         .teacher_logprobs = options.loss.opd.is_on ? sample.teacher_logprobs.data() : nullptr,
                         .entropy = rollout.entropy[i].data(),
                         .mask = mask.data(),
                         .advantages = advantages.data(),
                         .covariant = choices[i].covariant.data(),
                         .low_entropy = choices[i].low_entropy.data(),
                         .entropy_share = normaliser.entropy_share(rl::num_low_entropy(choices)),
                         .num_rejected = num_rejected[i]},
                        {dlogprobs.data(), dentropy.data(), ddivergence.data()}, sums);
    outcome.gradients.insert(outcome.gradients.end(), dlogprobs.begin(), dlogprobs.end());
    outcome.gradients.insert(outcome.gradients.end(), dentropy.begin(), dentropy.end());
    outcome.gradients.insert(outcome.gradients.end(), ddivergence.begin(), ddivergence.end());
  }
  for (double& gradient : outcome.gradients) gradient *= normaliser.loss_scale();
  outcome.metrics = normaliser.metrics(sums);
  return outcome;
}

struct FlagCase {
  std::string flag;   // without "--"; with "no-" before it the flag is turned off
  std::string value;  // "": a switch
  Arguments context;  // other flags that make it matter
  bool was_truncated = true;
};

const Arguments kKl = {"--use-kl-loss", "--kl-loss-coef", "0.1"};
const Arguments kOpd = {"--use-opd", "--opd-teacher-load", "teacher"};
const Arguments kClipCov = {"--pg-loss-type", "clip_cov", "--clip-cov-lb", "0.05"};
const Arguments kTis = {"--use-tis", "--tis-clip", "1.05"};

const std::vector<FlagCase> kCases = {
    {"advantage-estimator", "rloo", {}},
    {"pg-loss-type", "sapo", {}},
    {"loss-agg-mode", "token-mean", {}},
    {"calculate-per-token-loss", "", {}},
    {"loss-norm-tokens", "10", {"--advantage-estimator", "dr_grpo"}},
    {"loss-norm-tokens", "10", {"--loss-agg-mode", "seq-mean-token-sum-norm"}},
    {"sample-mean-epsilon", "0.5", {}},
    {"no-count-removed-samples", "", {}},
    {"eps-clip", "0.05", {}},
    {"eps-clip-high", "0.05", {}},
    {"eps-clip-c", "1.05", {}},
    {"cispo-max-ratio", "1.05", {"--pg-loss-type", "cispo"}},
    {"sequence-ratio-per-token", "", {"--pg-loss-type", "gspo", "--use-tis"}},
    {"max-log-ratio", "0.01", {}},
    {"sapo-tau-pos", "2", {"--advantage-estimator", "sapo"}},
    {"sapo-tau-neg", "2", {"--advantage-estimator", "sapo"}},
    {"dro-beta", "0.5", {"--pg-loss-type", "dro"}},
    {"pg-loss-type", "geo_mean", {}},
    {"pg-loss-type", "vespo", {"--pg-loss-type", "reinforce"}},
    {"vespo-k-pos", "1", {"--pg-loss-type", "vespo"}},
    {"vespo-lambda-pos", "1", {"--pg-loss-type", "vespo"}},
    {"vespo-k-neg", "1", {"--pg-loss-type", "vespo"}},
    {"vespo-lambda-neg", "1", {"--pg-loss-type", "vespo"}},
    {"pg-loss-type", "clip_cov", {}},
    {"pg-loss-type", "kl_cov", {}},
    {"clip-cov-ratio", "0.5", kClipCov},
    {"clip-cov-lb", "0.3", {"--pg-loss-type", "clip_cov", "--clip-cov-lb", "0.05", "--clip-cov-ratio", "1"}},
    {"clip-cov-ub", "0.3", {"--pg-loss-type", "clip_cov", "--clip-cov-lb", "0.05", "--clip-cov-ratio", "1"}},
    {"kl-cov-ratio", "0.5", {"--pg-loss-type", "kl_cov"}},
    {"kl-cov-coef", "1", {"--pg-loss-type", "kl_cov"}},
    {"top-entropy-quantile", "0.2", {}},
    {"multi-objective-aggregation", "normalize_then_sum", {}},
    {"use-kl-loss", "", {"--kl-loss-coef", "0"}},
    {"kl-loss-coef", "0.1", {"--use-kl-loss", "--kl-loss-coef", "0"}},
    {"kl-loss-type", "k2", kKl},
    {"no-use-unbiased-kl", "", kKl},
    {"kl-clamp", "0.001", kKl},
    {"entropy-coef", "0.01", {}},
    {"use-tis", "", {}},
    {"tis-clip", "1.01", {"--use-tis"}},
    {"tis-clip-low", "0.99", kTis},
    {"tis-mode", "mask", kTis},
    {"tis-mode", "reject", kTis},
    {"tis-mode", "reject", {"--use-tis", "--tis-clip", "1.05", "--tis-mode", "mask"}},
    {"tis-level", "sequence", kTis},
    {"tis-level", "geometric", kTis},
    {"tis-level", "geometric", {"--use-tis", "--tis-clip", "1.05", "--tis-level", "sequence"}},
    {"tis-veto", "0.8", {}},
    {"old-logprobs", "proximal", {}, false},
    {"old-logprobs", "proximal", {"--use-tis"}},
    {"behavior-kl-coef", "0.1", {}},
    {"mask-offpolicy-in-partial-rollout", "", {}},
    {"use-opsm", "", {}},
    {"opsm-delta", "0.1", {"--use-opsm"}},
    {"off-policy-mask-threshold", "0.01", {}},
    {"get-mismatch-metrics", "", {}, false},
    {"disable-grpo-std-normalization", "", {}},
    {"group-epsilon", "0.5", {}},
    {"reward-std-scope", "batch", {}},
    {"normalize-advantages", "", {}},
    {"whiten-epsilon", "0.5", {"--normalize-advantages"}},
    {"whiten-epsilon", "0.5", {"--advantage-estimator", "reinforce_plus_plus_baseline"}},
    {"gamma", "0.9", {"--advantage-estimator", "reinforce_plus_plus"}},
    {"no-discount-masked-tokens", "", {"--advantage-estimator", "reinforce_plus_plus", "--gamma", "0.9"}},
    {"kl-coef", "0.1", {}},
    {"kl-coef", "0.1", {"--use-kl-loss", "--kl-loss-coef", "0"}},
    {"kl-coef", "0.1", {"--advantage-estimator", "reinforce_plus_plus", "--use-kl-loss", "--kl-loss-coef", "0"}},
    {"opd-kl-coef", "0.5", kOpd},
    {"no-opd-use-task-rewards", "", kOpd},
    {"opd-loss-coef", "0.5", kOpd},
    {"mask-truncated-completions", "", {}},
    {"overlong-buffer-len", "4", {}},
    {"overlong-penalty-factor", "0.5", {"--overlong-buffer-len", "4"}},
};

void expect_effect(const FlagCase& one) {
  Arguments with = one.context;
  with.push_back("--" + one.flag);
  if (!one.value.empty()) with.push_back(one.value);
  EXPECT_NE(outcome_of(parsed_losses(with), one.was_truncated),
            outcome_of(parsed_losses(one.context), one.was_truncated))
      << "--" << one.flag << " " << one.value << " does nothing";
}

TEST(LossOptions, EveryFlagChangesWhatItSays) {
  for (const FlagCase& one : kCases) expect_effect(one);
  for (const rl::Estimator& estimator : rl::estimators()) {
    if (!estimator.needs_group) continue;
    expect_effect({"disable-rewards-normalization", "", {"--advantage-estimator", std::string(estimator.name)}});
  }
}

// The switch is refused without a teacher, and a teacher without the switch.
TEST(LossOptions, ATeacherChangesAdvantagesAndIsReported) {
  const Outcome taught = outcome_of(parsed_losses(kOpd), true), plain = outcome_of(parsed_losses({}), true);
  EXPECT_NE(taught.gradients, plain.gradients);
  EXPECT_TRUE(taught.metrics.contains("opd_reverse_kl"));
  EXPECT_FALSE(plain.metrics.contains("opd_reverse_kl"));
}

TEST(LossOptions, EveryFlagIsAmongTheCases) {
  // Other tests cover which model the reference is (tests/cli/learning/loss_flags_test.cc, tests/run/learner_test.cc),
  // which teacher a sample has and what divergence is computed from its distribution
  // (tests/cli/learning/distillation_test.cc).
  std::set<std::string> tried = {"disable-rewards-normalization", "ref-load", "ref-mixup-alpha", "ref-update-interval"};
  for (const char* name :
       {"use-opd", "opd-teacher-load", "opd-teacher-address", "opd-teacher-key", "opd-beta", "opd-top-k"})
    tried.insert(name);
  // These flags change which completions are trained on, not their loss: tests/cli/learning/given_answers_test.cc tries
  // them.
  for (const char* name : {"opd-on-policy-share", "opd-answer-key"}) tried.insert(name);
  for (const FlagCase& one : kCases) tried.insert(one.flag.starts_with("no-") ? one.flag.substr(3) : one.flag);
  LossOptions loss;
  options::Options options;
  loss.visit(options);
  for (const auto& [name, value] : options.result_options()) EXPECT_TRUE(tried.contains(name)) << "--" << name;
}

// Returns the message that refuses these arguments; "accepted" if none does.
std::string refusal_of_losses(const Arguments& arguments) {
  return base::thrown_by([&] { parsed_losses(arguments); }, "accepted");
}

TEST(LossOptions, ATeacherThatCannotBeToldIsRefused) {
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"--use-opd"}, "--use-opd: needs --opd-teacher-load;"},
      {{"--opd-teacher-load", "a"}, "--opd-teacher-load: does nothing without --use-opd;"},
      {{"--opd-teacher-key", "a"}, "--opd-teacher-key: does nothing without --use-opd;"},
      {{"--opd-kl-coef", "0.5"}, "--opd-kl-coef: does nothing without --use-opd;"},
      {{"--no-opd-use-task-rewards"}, "--no-opd-use-task-rewards: does nothing without --use-opd;"},
      {{"--opd-loss-coef", "0.5"}, "--opd-loss-coef: does nothing without --use-opd;"},
      {{"--use-opd", "--opd-teacher-load", "a", "--opd-beta", "0.5"}, "--opd-beta: does nothing without --opd-loss-"},
      {{"--use-opd", "--opd-teacher-load", "a", "--opd-top-k", "5"}, "--opd-top-k: does nothing without --opd-loss-"},
      {{"--use-opd", "--opd-teacher-load", "a", "--opd-kl-coef", "0", "--opd-loss-coef", "1", "--opd-top-k", "1"},
       "--opd-top-k 1: renormalised over one token both distributions are 1, so --opd-loss-coef would add neither loss "
       "nor gradient; give 2 or more, or 0 for the whole vocabulary"},
      {{"--use-opd", "--opd-teacher-load", "a", "--opd-loss-coef", "1", "--opd-beta", "0", "--opd-top-k", "1"},
       "--opd-top-k 1: renormalised over one token both distributions are 1,"},
      {{"--use-opd", "--opd-teacher-load", "a", "--opd-top-k", "1"}, "--opd-top-k: does nothing without --opd-loss-"},
      {{"--use-opd", "--opd-teacher-load", "a", "--opd-loss-coef", "1", "--opd-top-k", "2"}, "accepted"},
      {{"--use-opd", "--opd-teacher-load", "a", "--opd-loss-coef", "1", "--opd-top-k", "0"}, "accepted"},
      {{"--use-opd", "--opd-teacher-load", "a", "--opd-on-policy-share", "0.5"},
       "--opd-on-policy-share: does nothing without --opd-loss-coef;"},
      {{"--use-opd", "--opd-teacher-load", "a", "--opd-loss-coef", "1", "--opd-answer-key", "gold"},
       "--opd-answer-key: does nothing without --opd-on-policy-share below 1;"},
      {{"--use-opd", "--opd-teacher-load", "a", "--opd-loss-coef", "1", "--opd-on-policy-share", "0.5",
        "--pg-loss-type", "clip_cov"},
       "--opd-on-policy-share 0.5: the tokens that --top-entropy-quantile, clip_cov and kl_cov choose"},
      {{"--use-opd", "--opd-teacher-load", "a", "--opd-loss-coef", "1", "--opd-on-policy-share", "0",
        "--opd-answer-key", "gold"},
       "accepted"},
      {{"--use-opd", "--opd-teacher-load", "a", "--no-opd-use-task-rewards", "--opd-kl-coef", "0"},
       "--no-opd-use-task-rewards with --opd-kl-coef 0: nothing is left to train on;"},
      {{"--use-opd", "--opd-teacher-load", "a", "b"}, "--opd-teacher-load: 2 teachers are given;"},
      {{"--use-opd", "--opd-teacher-load", "a=x", "b", "--opd-teacher-key", "source"},
       "--opd-teacher-load b: write it as NAME=DIRECTORY"},
      {{"--use-opd", "--opd-teacher-load", "a=x", "a=y", "--opd-teacher-key", "source"},
       "--opd-teacher-load a=y: another teacher has this name"},
      {{"--use-opd", "--opd-teacher-load", "a=x", "b=y=z", "--opd-teacher-key", "source"}, "accepted"},
      {{"--opd-teacher-address", "a"}, "--opd-teacher-address: does nothing without --use-opd;"},
      {{"--use-opd", "--opd-teacher-address", "a", "--opd-loss-coef", "1"},
       "--opd-loss-coef with --opd-teacher-address: whole distributions need"},
      {{"--use-opd", "--opd-teacher-load", "a", "--opd-teacher-address", "b"},
       "--opd-teacher-load: 2 teachers are given;"},
      {{"--use-opd", "--opd-teacher-address", "b", "--opd-teacher-key", "source"},
       "--opd-teacher-address b: write it as NAME=ADDRESS"},
      {{"--use-opd", "--opd-teacher-load", "a=x", "--opd-teacher-address", "a=y", "--opd-teacher-key", "source"},
       "--opd-teacher-address a=y: another teacher has this name"},
      {{"--use-opd", "--opd-teacher-address", "b", "c:1"}, "accepted"},
  };
  for (const auto& [arguments, says] : cases)
    EXPECT_TRUE(refusal_of_losses(arguments).starts_with(says)) << refusal_of_losses(arguments);
  const LossOptions two =
      parsed_losses({"--use-opd", "--opd-teacher-load", "a=x", "b=y=z", "--opd-teacher-key", "source"});
  EXPECT_EQ(two.opd_teachers().at(1).name, "b");
  EXPECT_EQ(two.opd_teachers().at(1).directory, "y=z");
  const LossOptions apart = parsed_losses({"--use-opd", "--opd-teacher-load", "a=x", "--opd-teacher-address", "b=m",
                                           "c=n", "b=h:1", "--opd-teacher-key", "source"});
  ASSERT_EQ(apart.opd_teachers().size(), 3U);
  EXPECT_EQ(apart.opd_teachers()[1].addresses, (std::vector<std::string>{"m", "h:1"}));
  EXPECT_EQ(apart.opd_teachers()[2].name, "c");
  EXPECT_EQ(parsed_losses(kOpd).opd_teachers().at(0).directory, "teacher");
}

TEST(LossOptions, NamesAreThoseOfTheTables) {
  const std::string refused = refusal_of_losses({"--advantage-estimator", "huber"});
  for (const rl::Estimator& estimator : rl::estimators()) {
    EXPECT_NE(refused.find(std::string(estimator.name)), std::string::npos) << refused;
  }
  EXPECT_TRUE(refused.starts_with("--advantage-estimator: 'huber' is none of grpo, dr_grpo, dapo")) << refused;
  EXPECT_TRUE(
      refusal_of_losses({"--pg-loss-type", "huber"}).starts_with("--pg-loss-type: 'huber' is none of ppo, gspo"));
  EXPECT_TRUE(refusal_of_losses({"--loss-agg-mode", "mean"})
                  .starts_with("--loss-agg-mode: 'mean' is none of seq-mean-token-mean"));
  EXPECT_TRUE(refusal_of_losses({"--kl-loss-type", "k4"}).starts_with("--kl-loss-type: 'k4' is none of k1, k2, k3"));
  EXPECT_TRUE(
      refusal_of_losses({"--tis-mode", "drop"}).starts_with("--tis-mode: 'drop' is none of truncate, mask, reject"));
  EXPECT_TRUE(refusal_of_losses({"--tis-level", "batch"})
                  .starts_with("--tis-level: 'batch' is none of token, sequence, geometric"));
  EXPECT_TRUE(
      refusal_of_losses({"--old-logprobs", "old"}).starts_with("--old-logprobs: 'old' is none of rollout, proximal"));
  EXPECT_TRUE(refusal_of_losses({"--reward-std-scope", "all"})
                  .starts_with("--reward-std-scope: 'all' is none of group, batch"));
  for (const char* flag : {"--pg-loss-type=", "--loss-agg-mode="})
    EXPECT_EQ(refusal_of_losses({flag}), "accepted") << flag;
}

TEST(LossOptions, AnEstimatorWithACriticIsRefusedWithOneWithout) {
  for (const std::string name : {"ppo", "gae"}) {
    try {
      parsed_losses({"--advantage-estimator", name});
      FAIL() << "accepted: " << name;
    } catch (const UserError& error) {
      const std::string text = error.what();
      EXPECT_TRUE(text.starts_with("--advantage-estimator: '" + name + "' needs a critic")) << text;
      EXPECT_EQ(text.find("did you mean"), std::string::npos) << text;
    }
  }
}

TEST(LossOptions, ConstantsOutOfRangeAreRefusedByTheirFlag) {
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"--eps-clip", "-0.1"}, "--eps-clip: must be at least 0, not -0.1"},
      {{"--eps-clip", "1.1"}, "--eps-clip: must be at most 1, not 1.1"},
      {{"--eps-clip-high", "inf"}, "--eps-clip-high: must be a finite number, not inf"},
      {{"--eps-clip-high=-3"}, "accepted"},
      {{"--eps-clip-c", "0.9"}, "--eps-clip-c 0.9: must be above 1, or 0 for no dual clip"},
      {{"--eps-clip-c", "0"}, "accepted"},
      {{"--cispo-max-ratio", "-1"}, "--cispo-max-ratio: must be at least 0, not -1"},
      {{"--max-log-ratio", "701"}, "--max-log-ratio: must be at most 700, not 701"},
      {{"--sapo-tau-pos", "0"}, "--sapo-tau-pos: must be greater than 0, not 0"},
      {{"--kl-loss-coef", "nan", "--use-kl-loss"}, "--kl-loss-coef: must be a number, not nan"},
      {{"--kl-clamp", "inf"}, "--kl-clamp: must be a finite number, not inf"},
      {{"--entropy-coef", "inf"}, "--entropy-coef: must be a finite number, not inf"},
      {{"--tis-clip", "0.5", "--tis-clip-low", "1"}, "--tis-clip 0.5: must be at least --tis-clip-low 1"},
      {{"--tis-veto", "1"}, "--tis-veto: must be less than 1, not 1"},
      {{"--behavior-kl-coef", "inf"}, "--behavior-kl-coef: must be a finite number, not inf"},
      {{"--opsm-delta=-inf"}, "--opsm-delta: must be a finite number, not -inf"},
      {{"--off-policy-mask-threshold", "-1"}, "--off-policy-mask-threshold: must be at least 0, not -1"},
      {{"--gamma", "1.5"}, "--gamma: must be at most 1, not 1.5"},
      {{"--kl-coef", "-0.1"}, "--kl-coef: must be at least 0, not -0.1"},
      {{"--kl-coef", "1e7"}, "--kl-coef: must be at most 1e+06, not 1e7"},
      {{"--kl-coef", "0.1", "--kl-loss-coef", "0.2", "--use-kl-loss"},
       "--kl-coef 0.1 and --kl-loss-coef 0.2: the KL is either in the reward or in the loss; leave one out"},
      {{"--kl-coef", "0.1", "--use-kl-loss", "--kl-loss-coef", "0"}, "accepted"},
      {{"--use-kl-loss"},
       "--use-kl-loss: needs --kl-loss-coef; give --kl-loss-coef 0.001 (verl's default), or --kl-loss-coef 0 to report "
       "the KL without training on it"},
      {{"--ref-update-interval", "0", "--kl-coef", "0.1"}, "--ref-update-interval: must be at least 1, not 0"},
      {{"--ref-update-interval", "5"},
       "--ref-update-interval: no reference is read without --kl-coef or --use-kl-loss (with --kl-loss-coef 0 it only "
       "reports the KL); give one of them, or leave --ref-update-interval out"},
      {{"--ref-update-interval", "5", "--kl-coef", "0.1"}, "accepted"},
      {{"--ref-update-interval", "5", "--kl-coef", "0.1", "--ref-mixup-alpha", "0.01"}, "accepted"},
      {{"--ref-mixup-alpha", "0"}, "--ref-mixup-alpha: must be greater than 0, not 0"},
      {{"--ref-mixup-alpha", "1.5"}, "--ref-mixup-alpha: must be at most 1, not 1.5"},
      {{"--ref-mixup-alpha", "0.5", "--kl-coef", "0.1"},
       "--ref-mixup-alpha 0.5: the reference is never renewed without --ref-update-interval; give both"},
      {{"--overlong-buffer-len", "-1"}, "--overlong-buffer-len: must be at least 0, not -1"},
      {{"--overlong-penalty-factor", "0", "--overlong-buffer-len", "4"},
       "--overlong-penalty-factor: must be greater than 0, not 0"},
      {{"--overlong-penalty-factor", "0.5"},
       "--overlong-penalty-factor 0.5: does nothing without --overlong-buffer-len; give both"},
      {{"--calculate-per-token-loss", "--loss-agg-mode", "token-sum"},
       "--calculate-per-token-loss and --loss-agg-mode token-sum: contradict each other; leave one out"},
      {{"--calculate-per-token-loss", "--loss-agg-mode", "token-mean"}, "accepted"},
      {{"--clip-cov-ratio", "0"}, "--clip-cov-ratio: must be greater than 0, not 0"},
      {{"--clip-cov-ratio", "1.5"}, "--clip-cov-ratio: must be at most 1, not 1.5"},
      {{"--clip-cov-lb", "5"}, "--clip-cov-lb 5: must be below --clip-cov-ub 5"},
      {{"--clip-cov-lb=-1", "--clip-cov-ub", "0"}, "accepted"},
      {{"--kl-cov-ratio", "nan"}, "--kl-cov-ratio: must be a number, not nan"},
      {{"--kl-cov-coef", "-1"}, "--kl-cov-coef: must be at least 0, not -1"},
      {{"--top-entropy-quantile", "0"}, "--top-entropy-quantile: must be greater than 0, not 0"},
      {{"--top-entropy-quantile", "1.2"}, "--top-entropy-quantile: must be at most 1, not 1.2"},
      {{"--top-entropy-quantile", "0.2", "--pg-loss-type", "kl_cov"},
       "--top-entropy-quantile 0.2 and --pg-loss-type kl_cov: tokens are chosen either by their entropy or by their "
       "covariance; leave one out"},
      {{"--use-tis", "--tis-level", "sequence", "--pg-loss-type", "vespo"},
       "--tis-level sequence: --pg-loss-type vespo multiplies a sample's ratio by the product of its tokens' weights "
       "already; give --tis-level token or geometric"},
      {{"--use-tis", "--tis-level", "geometric", "--pg-loss-type", "vespo"}, "accepted"},
      {{"--use-tis", "--pg-loss-type", "vespo"}, "accepted"},
      {{"--vespo-lambda-pos", "0"}, "--vespo-lambda-pos: must be greater than 0, not 0"},
      {{"--multi-objective-aggregation", "apart"},
       "--multi-objective-aggregation: 'apart' is none of sum_then_normalize, normalize_then_sum"},
      {{"--multi-objective-aggregation", "normalize_then_sum", "--advantage-estimator", "rloo"},
       "--multi-objective-aggregation normalize_then_sum and --advantage-estimator rloo: its advantages are not "
       "divided "
       "by a standard deviation; leave one out"},
      {{"--multi-objective-aggregation", "normalize_then_sum", "--reward-std-scope", "batch"},
       "--multi-objective-aggregation normalize_then_sum and --reward-std-scope batch: each reward is divided by its "
       "standard deviation in the group; leave one out"},
      {{"--multi-objective-aggregation", "normalize_then_sum", "--kl-coef", "0.1"},
       "--multi-objective-aggregation normalize_then_sum and --kl-coef 0.1: a penalty is taken from the sum of the "
       "rewards, which is not formed; leave one out"},
      {{"--custom-advantage-path", "advantages.py"},
       "--custom-advantage-path advantages.py: write it as FILE.py:FUNCTION"},
  };
  for (const auto& [arguments, expected] : cases) EXPECT_EQ(refusal_of_losses(arguments), expected) << arguments[0];
}

// A checkpoint that was saved before these options had choices remembers them as free text.
TEST(LossOptions, ACheckpointRemembersNamesAsItAlwaysHas) {
  LossOptions loss;
  options::Options options;
  loss.visit(options);
  const std::map<std::string, std::string> remembered = options.result_options();
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{{"advantage-estimator", "grpo"},
                                                                                    {"pg-loss-type", ""},
                                                                                    {"loss-agg-mode", ""},
                                                                                    {"kl-loss-type", "low_var_kl"}}) {
    EXPECT_EQ(remembered.at(name), base::fingerprint(name, value)) << name;
  }
  EXPECT_EQ(remembered.at("tis-mode"), "truncate");
}

// The default was off: a run without a KL loss does not depend on the flag and resumes, one with it must be told.
TEST(LossOptions, TheUnbiasedKlCountsOnlyWhereThereIsAKlLoss) {
  const auto remembered = [](const Arguments& arguments) {
    LossOptions loss;
    options::Options options;
    loss.visit(options);
    options.parse(arguments);
    return options.result_options().at("use-unbiased-kl");
  };
  EXPECT_EQ(remembered({}), "false");
  EXPECT_EQ(remembered({"--use-unbiased-kl"}), "false");
  EXPECT_EQ(remembered({"--kl-coef", "0.1"}), "false");
  EXPECT_EQ(remembered(kKl), "true");
  EXPECT_EQ(remembered({"--use-kl-loss", "--kl-loss-coef", "0.1", "--no-use-unbiased-kl"}), "false");
}

// A run that depends on a changed definition is not resumed without notice.
TEST(LossOptions, NewDefinitionsAreRememberedWhereTheRunDependsOnThem) {
  using Definitions = std::map<std::string, std::string>;
  const auto of = [](const Arguments& arguments) { return rl::new_definitions(parsed_losses(arguments).loss); };
  EXPECT_EQ(of({}), Definitions());
  EXPECT_EQ(of({"--entropy-coef", "0.01", "--loss-agg-mode", "token-mean"}), Definitions());
  EXPECT_EQ(of({"--entropy-coef", "0.01"}), (Definitions{{"the mean of --entropy-coef", "over all tokens"}}));
  EXPECT_EQ(of(kKl), Definitions());
  EXPECT_EQ(of({"--use-kl-loss", "--kl-loss-coef", "0.1", "--kl-loss-type", "k3+"}).size(), 1U);
  EXPECT_EQ(of({"--mask-offpolicy-in-partial-rollout"}).size(), 1U);
  EXPECT_EQ(of({"--top-entropy-quantile", "0.2"}), Definitions());
  EXPECT_EQ(of({"--entropy-coef", "0.01", "--loss-agg-mode", "token-mean", "--top-entropy-quantile", "0.2"}).size(),
            1U);
  EXPECT_EQ(of({"--use-tis", "--tis-mode", "reject"}), Definitions());
  EXPECT_EQ(of({"--use-tis", "--tis-mode", "mask", "--tis-veto", "1e-4"}), Definitions());
  EXPECT_EQ(of({"--use-tis", "--tis-mode", "reject", "--tis-veto", "1e-4"}).size(), 1U);
  EXPECT_EQ(of({"--top-entropy-quantile", "0.2", "--use-tis"}), Definitions());
  EXPECT_EQ(of({"--top-entropy-quantile", "0.2", "--use-tis", "--pg-loss-type", "vespo"}).size(), 1U);
  EXPECT_EQ(of({"--top-entropy-quantile", "0.2", "--pg-loss-type", "geo_mean"}), Definitions());
}

TEST(LossOptions, ALossThatNothingBoundsIsNotForSamplesOfOlderWeights) {
  const auto reason = [](const Arguments& arguments) {
    return rl::why_not_off_policy(parsed_losses(arguments).loss).value_or("none");
  };
  for (const rl::Surrogate& surrogate : rl::surrogates()) {
    const std::string name(surrogate.name);
    EXPECT_EQ(reason({"--pg-loss-type", name}) == "none", name != "reinforce" && name != "kl_cov") << name;
    EXPECT_TRUE(reason({"--pg-loss-type", name, "--old-logprobs", "proximal"}).starts_with("--old-logprobs proximal:"));
    EXPECT_EQ(reason({"--pg-loss-type", name, "--old-logprobs", "proximal", "--use-tis"}), "none") << name;
    EXPECT_EQ(reason({"--pg-loss-type", name, "--mask-offpolicy-in-partial-rollout"}), "none") << name;
  }
  EXPECT_EQ(reason({}), "none");
  EXPECT_EQ(
      reason({"--advantage-estimator", "reinforce"}),
      "--pg-loss-type reinforce: has no trust region, so samples of older weights would move the policy without a "
      "bound; give --old-logprobs proximal --use-tis, --use-opsm, or another --pg-loss-type such as ppo");
  const Arguments reinforce = {"--pg-loss-type", "reinforce"};
  const auto with = [&](Arguments more) {
    more.insert(more.begin(), reinforce.begin(), reinforce.end());
    return reason(more);
  };
  EXPECT_NE(with({"--use-tis"}), "none") << "the weights are 1: old and sampled log-probs are the same";
  EXPECT_EQ(with({"--use-opsm"}), "none");
  EXPECT_EQ(with({"--off-policy-mask-threshold", "0.1"}), "none");
  EXPECT_NE(with({"--use-opsm", "--old-logprobs", "proximal"}), "none") << "it compares with the proximal policy";
  EXPECT_NE(with({"--tis-veto", "0.0001"}), "none") << "it takes out catastrophes alone";
  EXPECT_TRUE(reason({"--pg-loss-type", "dro", "--dro-beta", "0"}).starts_with("--pg-loss-type dro:"));
}

TEST(LossOptions, AKlThatIsOnlyWatchedNeedsTheReferenceToo) {
  EXPECT_TRUE(parsed_losses({"--use-kl-loss", "--kl-loss-coef", "0"}).needs_reference());
  EXPECT_TRUE(parsed_losses({"--use-kl-loss", "--kl-loss-coef", "0.00", "--ref-load", "other"}).needs_reference());
  EXPECT_TRUE(parsed_losses({"--kl-coef", "0.01"}).needs_reference()) << "the reward's KL compares with it too";
  EXPECT_FALSE(parsed_losses({"--kl-coef", "0.00"}).needs_reference());
  EXPECT_FALSE(parsed_losses({}).needs_reference());
}

}  // namespace
}  // namespace tandem::config
