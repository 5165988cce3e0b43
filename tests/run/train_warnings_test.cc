// Checks that flags which are allowed together and most likely not meant so are reported, once, with what to give
// instead.
#include "run/train_warnings.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "options/options.h"

namespace tandem::run {
namespace {

using Arguments = std::vector<std::string>;

std::vector<std::string> warnings_of(const Arguments& more) {
  config::TrainConfig config;
  options::Options options;
  config.visit(options);
  Arguments arguments = {"--colocate", "--hf-checkpoint", "model", "--prompt-data",
                         "data.jsonl", "--rm-type",       "exact", "--rollout-batch-size",
                         "4",          "--save",          "run",   "--n-samples-per-prompt",
                         "2",          "--num-rollout",   "3"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  options.parse(arguments);
  config.check();
  return train_warnings(config);
}

TEST(TrainWarnings, SayWhichFlagsToChange) {
  const std::vector<std::pair<Arguments, std::vector<std::string>>> cases = {
      {{}, {}},
      {{"--use-kl-loss", "--kl-loss-coef", "0"}, {}},
      {{"--use-kl-loss", "--kl-loss-coef", "0.1"}, {}},
      {{"--use-kl-loss", "--kl-loss-coef", "0", "--kl-loss-type", "k1", "--no-use-unbiased-kl"}, {}},
      {{"--use-kl-loss", "--kl-loss-coef", "0.1", "--kl-loss-type", "k1+", "--no-use-unbiased-kl"}, {}},
      {{"--use-kl-loss", "--kl-loss-coef", "0.1", "--kl-loss-type", "k1"}, {}},
      {{"--use-kl-loss", "--kl-loss-coef", "0.1", "--kl-loss-type", "k1", "--no-use-unbiased-kl"},
       {"--kl-loss-type k1 --no-use-unbiased-kl"}},
      {{"--use-kl-loss", "--kl-loss-coef", "0.1", "--kl-loss-type", "k2"},
       {"--kl-loss-type k2: times the policy ratio, which --use-unbiased-kl (the default) gives it, its expected "
        "gradient on policy is not that of the reverse KL; give k2+, whose gradient is, or --no-use-unbiased-kl"}},
      {{"--use-kl-loss", "--kl-loss-coef", "0.1", "--kl-loss-type", "abs"}, {"give abs+, whose gradient is"}},
      {{"--use-kl-loss", "--kl-loss-coef", "0.1", "--kl-loss-type", "k2", "--no-use-unbiased-kl"}, {}},
      {{"--use-kl-loss", "--kl-loss-coef", "0.1", "--kl-loss-type", "k2+"}, {}},
      {{"--use-kl-loss", "--kl-loss-coef", "0.1", "--kl-loss-type", "abs+"}, {}},
      {{"--use-kl-loss", "--kl-loss-coef", "0", "--kl-loss-type", "k2"}, {}},
      {{"--kl-coef", "0.1"}, {}},
      {{"--kl-coef", "0.1", "--kl-loss-type", "k1"}, {}},
      {{"--kl-coef", "0.1", "--kl-loss-type", "k2", "--use-kl-loss", "--kl-loss-coef", "0"}, {}},
      {{"--kl-coef", "0.1", "--kl-loss-type", "k2"}, {"--kl-loss-type k2: is the estimate of --use-kl-loss"}},
      {{"--rollout-top-p", "0.7"}, {"--rollout-top-p"}},
      {{"--rollout-top-p", "0.7", "--use-tis"}, {"--rollout-top-p"}},
      {{"--use-tis", "--tis-level", "sequence"}, {"--use-tis: does nothing here"}},
      {{"--use-tis", "--tis-mode", "reject"}, {"leave it out (it is for truncated sampling"}},
      {{"--use-tis", "--load-debug-rollout-data", "rollouts.jsonl"}, {}},
      {{"--use-tis", "--partial-rollout", "--over-sampling-batch-size", "8"}, {}},
      {{"--rollout-top-k", "20", "--use-tis", "--tis-level", "sequence"}, {"--rollout-top-p", "--tis-level sequence"}},
      {{"--advantage-estimator", "gspo"}, {"--eps-clip 0.2: GSPO"}},
      {{"--pg-loss-type", "gspo"}, {"--eps-clip 0.2: GSPO"}},
      {{"--advantage-estimator", "gspo", "--eps-clip", "3e-4", "--eps-clip-high", "4e-4"}, {}},
      {{"--advantage-estimator", "gspo", "--pg-loss-type", "ppo"}, {}},
      {{"--advantage-estimator", "cispo"},
       {"ratios below 0.8 count as that",
        "--advantage-estimator cispo: its terms are aggregated by seq-mean-token-mean; CISPO as published, and TRL's, "
        "is the mean over tokens, give --loss-agg-mode token-mean"}},
      {{"--advantage-estimator", "cispo", "--loss-agg-mode", "token-mean"}, {"ratios below 0.8 count as that"}},
      {{"--advantage-estimator", "cispo", "--cispo-max-ratio", "5"}, {"give --loss-agg-mode token-mean"}},
      {{"--advantage-estimator", "cispo", "--cispo-max-ratio", "5", "--loss-agg-mode", "token-mean"}, {}},
      {{"--advantage-estimator", "cispo", "--cispo-max-ratio", "5", "--loss-agg-mode", "seq-mean-token-mean"}, {}},
      {{"--advantage-estimator", "cispo", "--cispo-max-ratio", "5", "--calculate-per-token-loss"}, {}},
      {{"--advantage-estimator", "cispo", "--pg-loss-type", "ppo"}, {}},
      {{"--advantage-estimator", "cispo", "--eps-clip", "1", "--eps-clip-high", "4", "--loss-agg-mode", "token-mean"},
       {}},
      {{"--lora-rank", "16"}, {"--lora-rank 16 with --lr 1e-06: that is a learning rate for all weights"}},
      {{"--lora-rank", "16", "--lr", "4e-6"}, {"such as --lr 1e-05"}},
      {{"--lora-rank", "16", "--lr", "1e-5"}, {}},
      {{"--lr", "1e-7"}, {}},
      {{"--advantage-estimator", "dapo"}, {"--eps-clip-high 0.28"}},
      {{"--advantage-estimator", "dapo", "--eps-clip-high", "0.28"}, {}},
      {{"--advantage-estimator", "reinforce"}, {}},
      {{"--advantage-estimator", "reinforce", "--num-steps-per-rollout", "4"},
       {"reinforce with 4 optimizer steps for each rollout"}},
      {{"--pg-loss-type", "reinforce", "--global-batch-size", "4", "--num-epochs-per-rollout", "2"},
       {"reinforce with 4 optimizer steps for each rollout"}},
      {{"--advantage-estimator", "reinforce", "--pg-loss-type", "ppo", "--num-steps-per-rollout", "4"}, {}},
      {{"--advantage-estimator", "grpo", "--num-steps-per-rollout", "4"}, {}},
      {{"--pg-loss-type", "kl_cov"}, {"--pg-loss-type kl_cov with one optimizer step for each rollout"}},
      {{"--pg-loss-type", "kl_cov", "--num-steps-per-rollout", "2"}, {}},
      {{"--pg-loss-type", "kl_cov", "--num-epochs-per-rollout", "2"}, {}},
      {{"--pg-loss-type", "clip_cov"}, {}},
  };
  for (const auto& [arguments, expected] : cases) {
    std::string typed;
    for (const std::string& word : arguments) typed += word + " ";
    const std::vector<std::string> warnings = warnings_of(arguments);
    ASSERT_EQ(warnings.size(), expected.size()) << typed << (warnings.empty() ? "" : warnings.front());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NE(warnings[i].find(expected[i]), std::string::npos) << typed << ": " << warnings[i];
    }
  }
}

TEST(TrainWarnings, SayThatATeacherWhichIsThePolicyTeachesNothing) {
  const std::string policy = "tests/golden/models/qwen3-tied", other = "tests/golden/models/qwen2-tied";
  const auto warnings = [&](const std::string& teacher, Arguments more) {
    more.insert(more.begin(), {"--hf-checkpoint", policy, "--use-opd", "--opd-teacher-load", teacher});
    return warnings_of(more);
  };
  const Arguments alone = {"--no-opd-use-task-rewards", "--opd-kl-coef", "1"};
  const std::vector<std::string> said = warnings(policy + "/../qwen3-tied", alone);
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said.front(), "--opd-teacher-load " + policy +
                              "/../qwen3-tied: is the model of --hf-checkpoint, and nothing else is learnt from: the "
                              "policy begins at its teacher, so every gradient is 0; give another model, or "
                              "--opd-use-task-rewards");
  EXPECT_TRUE(warnings(other, alone).empty());
  EXPECT_TRUE(warnings(policy, {"--opd-kl-coef", "1"}).empty()) << "the reward is learnt from, too";
}

TEST(TrainWarnings, SayOfAWarmUpThatItIsLongerThanTheRun) {
  trainer::Schedule schedule;
  schedule.warmup_steps = 5;
  EXPECT_EQ(
      warm_up_warning(schedule, 1),
      "--lr-warmup-iters 5: the run ends after 1 optimizer step, before the learning rate has risen to --lr; lower "
      "it");
  EXPECT_TRUE(warm_up_warning(schedule, 4));
  EXPECT_FALSE(warm_up_warning(schedule, 5));
  EXPECT_FALSE(warm_up_warning(schedule, 0)) << "such a run trains nothing";
}

}  // namespace
}  // namespace tandem::run
