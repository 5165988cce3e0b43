// Checks that every row of the loss tables and every flag of loss and optimizer trains a rollout through the program.
// All runs train on one rollout that was sampled from a truncated distribution. For each row the first optimizer step,
// which is on policy, is computed again from the samples that the run wrote.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "config/train_config.h"
#include "options/options.h"
#include "rl/losses.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

constexpr size_t kGroup = 4, kStep = 6;  // number of samples of a group, and of an optimizer step

struct SampleFacts {
  double reward = 0.0;
  std::vector<double> logprobs, reference;  // values of trained tokens; `reference` is empty unless a run scored one
};

std::vector<double> numbers_of(const base::Json& values) { return values.get<std::vector<double>>(); }

double mean_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double squares_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += (value - mean_of(values)) * (value - mean_of(values));
  return sum;
}

// ---- The rows are computed on policy, apart from src/rl ----

using Advantages = std::vector<double>;

Advantages less_group_mean(const std::vector<SampleFacts>& samples, bool by_deviation, double scale = 1.0) {
  Advantages advantages;
  for (size_t begin = 0; begin < samples.size(); begin += kGroup) {
    std::vector<double> rewards;
    for (size_t i = begin; i < begin + kGroup; ++i) rewards.push_back(samples[i].reward);
    const double spread = by_deviation ? std::sqrt(squares_of(rewards) / (kGroup - 1)) + 1e-6 : 1.0;
    for (const double reward : rewards) advantages.push_back((reward - mean_of(rewards)) * scale / spread);
  }
  return advantages;
}

Advantages rewards_of(const std::vector<SampleFacts>& samples) {
  Advantages rewards;
  for (const SampleFacts& sample : samples) rewards.push_back(sample.reward);
  return rewards;
}

Advantages whitened(const std::vector<SampleFacts>& samples, Advantages advantages) {
  std::vector<double> tokens;
  for (size_t i = 0; i < samples.size(); ++i) tokens.insert(tokens.end(), samples[i].logprobs.size(), advantages[i]);
  const double spread = std::sqrt(squares_of(tokens) / static_cast<double>(tokens.size() - 1) + 1e-8);
  for (double& advantage : advantages) advantage = (advantage - mean_of(tokens)) / spread;
  return advantages;
}

Advantages advantages_of(const std::string& row, const std::vector<SampleFacts>& samples) {
  if (row == "reinforce") return rewards_of(samples);
  if (row == "reinforce_plus_plus") return whitened(samples, rewards_of(samples));
  if (row == "reinforce_plus_plus_baseline") return whitened(samples, less_group_mean(samples, false));
  if (row == "dr_grpo") return less_group_mean(samples, false);
  if (row == "rloo") return less_group_mean(samples, false, kGroup / (kGroup - 1.0));
  const std::set<std::string> normalised = {"grpo", "dapo", "gspo", "cispo", "sapo"};
  EXPECT_TRUE(normalised.contains(row)) << "say here what the advantages of " << row << " are";
  return less_group_mean(samples, true);
}

// Returns a token's term at a ratio of 1.
double policy_term(const std::string& row, double advantage, double logprob) {
  const std::set<std::string> ratios = {"ppo", "gspo", "rloo", "geo_mean", "clip_cov", "kl_cov"};
  if (ratios.contains(row)) return -advantage;
  if (row == "sapo") return -2.0 / (advantage > 0 ? 1.0 : 1.05) * advantage;
  const std::set<std::string> weighted = {"cispo", "reinforce", "dppo_tv", "dppo_kl", "dro", "vespo"};
  EXPECT_TRUE(weighted.contains(row)) << "say here what the term of " << row << " is";
  return -advantage * logprob;
}

// Takes the tokens whose covariance is between the bounds out of the policy terms of a step, as Clip-Cov does where its
// ratio is 1. Returns their share.
constexpr double kCovLow = 0.1, kCovHigh = 2.0;
double drop_covariant(const std::vector<SampleFacts>& samples, const Advantages& advantages,
                      std::vector<std::vector<double>>& terms) {
  std::vector<double> all_advantages, all_logprobs;
  for (size_t i = 0; i < terms.size(); ++i) {
    all_advantages.insert(all_advantages.end(), terms[i].size(), advantages[i]);
    all_logprobs.insert(all_logprobs.end(), samples[i].logprobs.begin(), samples[i].logprobs.end());
  }
  double num_dropped = 0.0;
  for (size_t i = 0; i < terms.size(); ++i) {
    for (size_t t = 0; t < terms[i].size(); ++t) {
      const double covariance =
          (advantages[i] - mean_of(all_advantages)) * (samples[i].logprobs[t] - mean_of(all_logprobs));
      if (covariance <= kCovLow || covariance >= kCovHigh) continue;
      terms[i][t] = 0.0;
      num_dropped += 1.0;
    }
  }
  return num_dropped / static_cast<double>(all_logprobs.size());
}

double kl_term(std::string row, double difference) {
  if (row.ends_with('+')) row.pop_back();
  if (row == "k1") return difference;
  if (row == "k2") return difference * difference / 2;
  if (row == "abs") return std::abs(difference);
  EXPECT_TRUE(row == "k3" || row == "low_var_kl") << "say here what the KL " << row << " is";
  const double k3 = std::exp(-difference) - 1 + difference;
  return row == "low_var_kl" ? std::min(k3, 10.0) : k3;
}

// Adds up the terms of the samples of one step, by the aggregation.
double aggregated(const std::string& row, const std::vector<std::vector<double>>& terms) {
  double sum = 0.0, sum_of_means = 0.0, num_tokens = 0.0;
  for (const std::vector<double>& sample : terms) {
    sum += mean_of(sample) * static_cast<double>(sample.size());
    sum_of_means += mean_of(sample);
    num_tokens += static_cast<double>(sample.size());
  }
  const auto num_samples = static_cast<double>(terms.size());
  if (row == "seq-mean-token-mean") return sum_of_means / num_samples;
  if (row == "token-mean") return sum / num_tokens;
  if (row == "token-sum") return sum;
  if (row == "seq-mean-token-sum") return sum / num_samples;
  EXPECT_EQ(row, "seq-mean-token-sum-norm") << "say here what it is";
  return sum / num_samples / 12;  // value of --rollout-max-response-len
}

// ---- The runs ----

class LossFlags : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<base::TemporaryDirectory>();
    const Captured result = run(arguments(
        "base", {"--rollout-top-p", "0.9", "--save-debug-rollout-data", in_folder("base/{rollout_id}.jsonl")}));
    ASSERT_EQ(result.code, 0) << result.err;
    // The model hardly ever ends a completion, so half of them are declared whole: some flags ask only about the
    // others.
    std::string text;
    for (base::Json line : json_lines(in_folder("base/0.jsonl"))) {
      line["status"] = line.at("sample_id").get<int64_t>() % 2 == 0 ? "completed" : "truncated";
      text += base::dump_json(line) + "\n";
    }
    base::write_file_durably(in_folder("base/0.jsonl"), text);
    ASSERT_EQ(run({"export", "--hf-checkpoint", kModel, "--output", in_folder("start")}).code, 0);
    start_ = base::read_file(in_folder("start/model.safetensors"));
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string in_folder(const std::string& path) { return *folder_ / path; }

  static Arguments arguments(const std::string& name, const Arguments& more) {
    Arguments result = with_custom_reward(train_arguments(in_folder(name), more), write_reward(*folder_));
    return with_flag(result, "--num-rollout", "1");
  }

  // Trains on the rollout of the base run. Returns the records of its optimizer steps.
  std::vector<base::Json> train(const std::string& name, Arguments more) {
    more.insert(more.end(), {"--load-debug-rollout-data", in_folder("base/{rollout_id}.jsonl"),
                             "--save-debug-rollout-data", in_folder(name + "/{rollout_id}.jsonl")});
    const Captured result = run(arguments(name, more));
    EXPECT_EQ(result.code, 0) << name << ": " << result.err;
    for (const std::string& word : more) given_.insert(word);
    std::vector<base::Json> steps;
    if (result.code != 0) return steps;
    for (const base::Json& record : json_lines(in_folder(name + "/metrics.jsonl"))) {
      if (record.contains("train/step")) steps.push_back(record);
    }
    EXPECT_EQ(steps.size(), 2U) << name;
    EXPECT_NE(weights_of(in_folder(name)), start_) << name << " trained nothing";
    return steps;
  }

  std::vector<SampleFacts> samples_of(const std::string& name) const {
    const std::vector<base::Json> sampled = json_lines(in_folder("base/0.jsonl"));
    const std::vector<base::Json> trained = json_lines(in_folder(name + "/0.jsonl"));
    std::vector<SampleFacts> samples;
    for (size_t i = 0; i < sampled.size(); ++i) {
      SampleFacts& sample = samples.emplace_back();
      sample.reward = sampled[i].at("reward").get<double>();
      sample.logprobs = numbers_of(sampled[i].at("rollout_log_probs"));
      if (trained[i].contains("ref_log_probs")) sample.reference = numbers_of(trained[i].at("ref_log_probs"));
      // Every token counts.
      for (const double mask : numbers_of(sampled[i].at("loss_mask"))) EXPECT_EQ(mask, 1.0);
    }
    return samples;
  }

  void expect_row(const std::string& estimator, const std::string& surrogate, const std::string& aggregation,
                  const std::string& kl, const base::Json& first_step, const std::string& name) const {
    SCOPED_TRACE(name + ": " + estimator + ", " + surrogate + ", " + aggregation + ", " + kl);
    const std::vector<SampleFacts> samples = samples_of(name);
    const Advantages advantages = advantages_of(estimator, samples);
    std::vector<std::vector<double>> policy(kStep), divergence(kStep);
    for (size_t i = 0; i < kStep; ++i) {
      ASSERT_FALSE(samples[i].logprobs.empty());
      ASSERT_EQ(samples[i].reference.size(), samples[i].logprobs.size());
      for (size_t t = 0; t < samples[i].logprobs.size(); ++t) {
        policy[i].push_back(policy_term(surrogate, advantages[i], samples[i].logprobs[t]));
        divergence[i].push_back(kl_term(kl, samples[i].logprobs[t] - samples[i].reference[t]));
      }
    }
    const double share = surrogate == "clip_cov" ? drop_covariant(samples, advantages, policy) : 0.0;
    const double pg_loss = aggregated(aggregation, policy), kl_loss = aggregated(aggregation, divergence);
    const auto metric = [&](const char* key) { return first_step.at(std::string("train/") + key).get<double>(); };
    EXPECT_NEAR(metric("pg_loss"), pg_loss, 1e-9 * (1.0 + std::abs(pg_loss)));
    EXPECT_NEAR(metric("kl_loss"), kl_loss, 1e-9 * (1.0 + std::abs(kl_loss)));
    if (surrogate == "clip_cov") {
      EXPECT_GT(share, 0.0);
      EXPECT_NEAR(metric("clip_cov_frac"), share, 1e-12);
    }
    if (surrogate == "kl_cov") {
      EXPECT_GT(metric("kl_cov_frac"), 0.0);
    }
    EXPECT_NEAR(metric("loss"), pg_loss + 0.1 * kl_loss, 1e-9 * (1.0 + std::abs(pg_loss)));
    EXPECT_NEAR(metric("kl"), aggregated("token-mean", divergence), 1e-9);
    EXPECT_NE(metric("kl_loss"), 0.0);
    EXPECT_GT(metric("grad_norm"), 0.0);
    EXPECT_EQ(metric("train_rollout_logprob_abs_diff"), 0.0);
    EXPECT_LT(metric("tis"), 1.0) << "--rollout-top-p 0.9 cut something";
    EXPECT_GT(metric("tis_abs"), 0.0);
  }

  static inline std::unique_ptr<base::TemporaryDirectory> folder_;
  static inline std::string start_;  // weights before any step, as a run writes them
  std::set<std::string> given_;      // words of all runs
};

// Each row has one run: first the estimators, with the rows that they stand for, then the surrogates and aggregations
// that no estimator stands for.
TEST_F(LossFlags, EveryRowOfTheTablesTrainsWhatItsFormulaSays) {
  std::set<std::string> surrogates, aggregations;
  for (const rl::Surrogate& row : rl::surrogates()) surrogates.emplace(row.name);
  for (const std::string_view name : rl::aggregation_names()) aggregations.emplace(name);
  size_t num_runs = 0;
  const auto expect_run = [&](const std::string& estimator, const std::string& surrogate,
                              const std::string& aggregation, const Arguments& flags) {
    const std::string name = "run" + std::to_string(num_runs);
    const std::string kl(rl::kl_loss_types()[num_runs++ % rl::kl_loss_types().size()]);
    Arguments more = {"--use-kl-loss",
                      "--kl-loss-coef",
                      "0.1",
                      "--kl-loss-type",
                      kl,
                      "--ref-load",
                      in_folder("base/hf/latest"),
                      "--advantage-estimator",
                      estimator,
                      "--clip-cov-ratio",
                      "1",
                      "--clip-cov-lb",
                      std::to_string(kCovLow),
                      "--clip-cov-ub",
                      std::to_string(kCovHigh)};
    more.insert(more.end(), flags.begin(), flags.end());
    const std::vector<base::Json> steps = train(name, more);
    if (!steps.empty()) expect_row(estimator, surrogate, aggregation, kl, steps[0], name);
    surrogates.erase(surrogate);
    aggregations.erase(aggregation);
  };
  for (const rl::Estimator& row : rl::estimators()) {
    const std::string aggregation(rl::aggregation_names()[static_cast<size_t>(row.aggregation)]);
    expect_run(std::string(row.name), std::string(row.surrogate), aggregation, {});
  }
  while (!surrogates.empty() || !aggregations.empty() || num_runs < rl::kl_loss_types().size()) {
    const std::string surrogate = surrogates.empty() ? "ppo" : *surrogates.begin();
    const std::string aggregation = aggregations.empty() ? "seq-mean-token-sum-norm" : *aggregations.begin();
    expect_run("grpo", surrogate, aggregation, {"--pg-loss-type", surrogate, "--loss-agg-mode", aggregation});
  }
}

TEST_F(LossFlags, EveryFlagOfLossAndOptimizerIsTakenAndTrains) {
  train("a", {"--advantage-estimator",
              "reinforce_plus_plus",
              "--gamma",
              "0.9",
              "--no-discount-masked-tokens",
              "--whiten-epsilon",
              "1e-6",
              "--pg-loss-type",
              "gspo",
              "--sequence-ratio-per-token",
              "--loss-agg-mode",
              "seq-mean-token-sum-norm",
              "--loss-norm-tokens",
              "20",
              "--eps-clip",
              "3e-4",
              "--eps-clip-high",
              "4e-4",
              "--eps-clip-c",
              "3",
              "--max-log-ratio",
              "10",
              "--use-kl-loss",
              "--kl-loss-coef",
              "0.01",
              "--kl-loss-type",
              "low_var_kl",
              "--use-unbiased-kl",
              "--kl-clamp",
              "5",
              "--ref-load",
              in_folder("base/hf/latest"),
              "--entropy-coef",
              "0.01",
              "--use-tis",
              "--tis-clip",
              "1.5",
              "--tis-clip-low",
              "0.5",
              "--tis-mode",
              "mask",
              "--tis-level",
              "sequence",
              "--old-logprobs",
              "proximal",
              "--tis-veto",
              "1e-4",
              "--behavior-kl-coef",
              "1e-3",
              "--mask-offpolicy-in-partial-rollout",
              "--get-mismatch-metrics",
              "--lr-decay-style",
              "cosine",
              "--min-lr",
              "1e-4",
              "--lr-warmup-iters",
              "1",
              "--lr-decay-iters",
              "10",
              "--weight-decay",
              "0.2",
              "--weight-decay-all",
              "--adam-beta1",
              "0.8",
              "--adam-beta2",
              "0.9",
              "--adam-eps",
              "1e-7"});
  train("b", {"--advantage-estimator",
              "grpo",
              "--group-epsilon",
              "1e-4",
              "--reward-std-scope",
              "batch",
              "--normalize-advantages",
              "--sample-mean-epsilon",
              "1e-8",
              "--no-count-removed-samples",
              "--use-opsm",
              "--opsm-delta",
              "1e-3",
              "--off-policy-mask-threshold",
              "0.5",
              "--cispo-max-ratio",
              "5",
              "--pg-loss-type",
              "cispo",
              "--clip-grad",
              "0.5",
              "--max-grad-norm-skip",
              "1e6",
              "--no-skip-zero-gradient",
              "--no-freeze-moe-router",
              "--moe-aux-loss-coeff",
              "0",
              "--moe-router-load-balancing-type",
              "none",
              "--no-moe-per-layer-logging",
              "--max-tokens-per-gpu",
              "128",
              "--micro-batches-multiple",
              "4",
              "--gradient-sum-group",
              "2",
              "--logprob-chunk-rows",
              "16"});
  train("c", {"--disable-rewards-normalization",
              "--pg-loss-type",
              "dro",
              "--dro-beta",
              "0.2",
              "--sapo-tau-pos",
              "1.1",
              "--sapo-tau-neg",
              "1.2",
              "--disable-grpo-std-normalization",
              "--calculate-per-token-loss",
              "--kl-coef",
              "0.05",
              "--ref-update-interval",
              "1",
              "--ref-mixup-alpha",
              "0.5",
              "--mask-truncated-completions",
              "--overlong-buffer-len",
              "6",
              "--overlong-penalty-factor",
              "0.5"});
  train("d", {"--multi-objective-aggregation",
              "normalize_then_sum",
              "--pg-loss-type",
              "vespo",
              "--vespo-k-pos",
              "1.5",
              "--vespo-lambda-pos",
              "2.5",
              "--vespo-k-neg",
              "2.5",
              "--vespo-lambda-neg",
              "1.5",
              "--lr-decay-style",
              "WSD",
              "--lr-wsd-decay-style",
              "cosine",
              "--lr-wsd-decay-iters",
              "1",
              "--top-entropy-quantile",
              "0.5"});
  train("f", {"--pg-loss-type", "clip_cov", "--clip-cov-ratio", "0.1", "--clip-cov-lb", "0.01", "--clip-cov-ub", "4"});
  train("g", {"--pg-loss-type", "kl_cov", "--kl-cov-ratio", "0.1", "--kl-cov-coef", "1"});
  train("e", {"--use-opd", "--opd-teacher-load", in_folder("base/hf/latest"), "--opd-kl-coef", "0.5",
              "--no-opd-use-task-rewards", "--opd-loss-coef", "0.1", "--opd-beta", "0.5", "--opd-top-k", "10"});
  given_.insert("--lr");  // given in all of them
  // These flags cannot be tried with a rollout that is read from a file: distillation_test.cc and
  // given_answers_test.cc try them.
  for (const char* flag : {"--opd-teacher-address", "--opd-teacher-key", "--opd-on-policy-share", "--opd-answer-key"})
    given_.insert(flag);
  config::LossOptions loss;
  config::OptimizerOptions optimizer;
  options::Options options;
  loss.visit(options);
  optimizer.visit(options);
  for (const auto& [name, value] : options.result_options()) {
    EXPECT_TRUE(given_.contains("--" + name) || given_.contains("--no-" + name)) << "--" << name << " is in no run";
  }
}

// The records of both steps of a rollout say how many tokens were chosen. Clip-Cov draws them by --seed; how samples
// are packed into micro-batches has no part in it.
TEST_F(LossFlags, ChosenTokensAreReportedAndDrawnByTheSeed) {
  const auto taken = [&](const std::string& name, Arguments more) {
    more.insert(more.end(), {"--pg-loss-type", "clip_cov", "--clip-cov-ratio", "0.2", "--clip-cov-lb", "0.01"});
    std::vector<double> losses;
    for (const base::Json& step : train(name, more)) {
      EXPECT_GT(step.at("train/clip_cov_frac").get<double>(), 0.0) << name;
      EXPECT_LE(step.at("train/clip_cov_frac").get<double>(), 0.2) << name;
      losses.push_back(step.at("train/pg_loss").get<double>());
    }
    return losses;
  };
  const std::vector<double> losses = taken("taken", {});
  EXPECT_EQ(taken("taken_again", {}), losses);
  EXPECT_NE(taken("taken_by_another_seed", {"--seed", "7"}).at(0), losses.at(0));
  EXPECT_EQ(taken("taken_in_small_batches", {"--max-tokens-per-gpu", "1"}).at(0), losses.at(0));
  for (const base::Json& step : train("top", {"--top-entropy-quantile", "0.25"})) {
    EXPECT_NEAR(step.at("train/low_entropy_frac").get<double>(), 0.75, 0.05);
    EXPECT_FALSE(step.contains("train/clip_cov_frac"));
  }
  const std::vector<base::Json> held = train("held", {"--pg-loss-type", "kl_cov", "--kl-cov-ratio", "0.5"});
  ASSERT_EQ(held.size(), 2U);
  for (const base::Json& step : held) EXPECT_NEAR(step.at("train/kl_cov_frac").get<double>(), 0.5, 0.05);
}

// The veto's bound is the lower one of the weights here: what a mode makes of a token beyond it is of no account,
// because the token's whole sample is out of the loss.
TEST_F(LossFlags, TheVetoIsTheSameInEveryMode) {
  const auto frac = [&](const std::string& mode) {
    const std::string name = "vetoed_" + mode;
    const Captured result = run(arguments(name, {"--rollout-top-p", "0.5", "--use-tis", "--tis-clip-low", "0.501",
                                                 "--tis-veto", "0.501", "--tis-mode", mode}));
    EXPECT_EQ(result.code, 0) << result.err;
    for (const base::Json& record : json_lines(in_folder(name + "/metrics.jsonl"))) {
      if (record.contains("train/step")) return record.at("train/tis_veto_frac").get<double>();
    }
    return 0.0;
  };
  const double masked = frac("mask");
  EXPECT_GT(masked, 0.0);
  EXPECT_LT(masked, 1.0);
  EXPECT_EQ(frac("reject"), masked);
  EXPECT_EQ(frac("truncate"), masked);
  EXPECT_EQ(weights_of(in_folder("vetoed_reject")), weights_of(in_folder("vetoed_mask")));
}

// This is slime's way to watch the KL: it is scored and reported, and the weights are those of a run without it.
TEST_F(LossFlags, AtCoefficientZeroTheKlIsReportedAndTrainsNothing) {
  const std::vector<base::Json> watched = train("watched", {"--use-kl-loss", "--kl-loss-coef", "0.00", "--ref-load",
                                                            in_folder("base/hf/latest"), "--kl-coef", "0.00"});
  ASSERT_EQ(watched.size(), 2U);
  for (const base::Json& step : watched) {
    EXPECT_GT(step.at("train/kl_loss").get<double>(), 0.0);
    EXPECT_GT(step.at("train/kl").get<double>(), 0.0);
    EXPECT_EQ(step.at("train/loss"), step.at("train/pg_loss"));
  }
  EXPECT_FALSE(train("plain", {}).at(0).contains("train/kl"));
  EXPECT_EQ(weights_of(in_folder("watched")), weights_of(in_folder("plain")));
}

// Weight decay once moved the weights of a run whose rewards never differ.
TEST(ZeroGradient, TakesNoOptimizerStepAndIsNotAFaultyOne) {
  base::TemporaryDirectory folder;
  base::write_file_durably(folder / "reward.py",
                           "def reward(completions, **kwargs):\n    return [0.1] * len(completions)\n");
  const auto train = [&](const std::string& name, Arguments more) {
    more.insert(more.end(), {"--max-skipped-steps", "1", "--group-epsilon", "0"});
    const Captured result = run(with_custom_reward(train_arguments(folder / name, more), folder / "reward.py:reward"));
    EXPECT_EQ(result.code, 0) << result.err;
    int64_t num_steps = 0;
    for (const base::Json& record : json_lines(folder / (name + "/metrics.jsonl"))) {
      if (record.contains("rollout/step")) {
        EXPECT_EQ(record.at("rollout/groups_without_signal"), 3.0);
        EXPECT_EQ(record.at("rollout/groups_with_equal_rewards"), 3.0);
        EXPECT_EQ(record.at("rollout/zero_std/count_0.1"), 3.0);
      }
      if (!record.contains("train/step")) continue;
      ++num_steps;
      EXPECT_EQ(record.at("train/grad_norm"), 0.0);
      EXPECT_EQ(record.at("train/zero_gradient"), 1.0);
      EXPECT_EQ(record.at("fault/skipped_steps"), 0.0);
    }
    EXPECT_EQ(num_steps, 4);
    return json_lines(folder / (name + "/samples/rollout_000001.jsonl")).at(0).at("weight_versions");
  };
  EXPECT_EQ(train("skipped", {}), base::Json({0}));
  EXPECT_EQ(train("taken", {"--no-skip-zero-gradient"}), base::Json({2}));
  EXPECT_NE(weights_of(folder / "skipped"), weights_of(folder / "taken"));
  ASSERT_EQ(run({"export", "--hf-checkpoint", kModel, "--output", folder / "start"}).code, 0);
  EXPECT_EQ(weights_of(folder / "skipped"), base::read_file(folder / "start/model.safetensors"));
}

}  // namespace
}  // namespace tandem::cli
