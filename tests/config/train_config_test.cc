// What a configuration of tandem train may be, and how it is refused.
#include "config/train_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/options.h"
#include "config/verb_configs.h"
#include "rl/losses.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"
#include "text/reward_rules.h"

namespace tandem::config {
namespace {

using Arguments = std::vector<std::string>;

const Arguments kMinimal = {"--colocate", "--hf-checkpoint",
                            "model",      "--prompt-data",
                            "data.jsonl", "--rm-type",
                            "exact",      "--rollout-batch-size",
                            "4",          "--n-samples-per-prompt",
                            "2",          "--num-rollout",
                            "3",          "--save",
                            "runs/x"};

TrainConfig parse(Arguments more = {}, const Arguments& base = kMinimal) {
  TrainConfig config;
  base::Options options;
  config.visit(options);
  more.insert(more.begin(), base.begin(), base.end());
  options.parse(more);
  config.check();
  return config;
}

// What the refusal of these arguments says.
std::string refusal(const Arguments& more, const Arguments& base = kMinimal) {
  try {
    parse(more, base);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

Arguments without(const std::string& flag, bool has_value) {
  Arguments arguments = kMinimal;
  const auto at = std::find(arguments.begin(), arguments.end(), flag);
  arguments.erase(at, at + (has_value ? 2 : 1));
  return arguments;
}

TEST(TrainConfig, DefaultsAreThoseOfTheDocumentedCommand) {
  const TrainConfig config = parse();
  EXPECT_EQ(config.data.lines.input_key, "prompt");
  EXPECT_EQ(config.data.lines.label_key, "label");
  EXPECT_FALSE(config.data.apply_chat_template.has_value());
  EXPECT_EQ(config.rollout.response_len(), 1024);
  EXPECT_EQ(config.model.dtype, "auto");
  EXPECT_EQ(config.model.seed, 1234);
  EXPECT_EQ(config.rollout.rollout_seed, 42);
  EXPECT_DOUBLE_EQ(config.optimizer.schedule.max_lr, 1e-6);
  EXPECT_DOUBLE_EQ(config.optimizer.gradient.clip_grad, 1.0);
  EXPECT_DOUBLE_EQ(config.optimizer.adamw.beta2, 0.98);
  EXPECT_DOUBLE_EQ(config.optimizer.adamw.weight_decay, 0.1);
  EXPECT_DOUBLE_EQ(config.loss.loss.eps_clip, 0.2);
  EXPECT_EQ(config.loss.loss.advantage_estimator, "grpo");
  EXPECT_EQ(config.loss.loss.kl_loss_type, "low_var_kl");
  EXPECT_TRUE(config.optimizer.gradient.skip_zero_gradient);
  EXPECT_FALSE(config.loss.needs_reference());
}

TEST(TrainConfig, OneStepPerRolloutUnlessToldOtherwise) {
  EXPECT_EQ(parse().samples_per_step(), 8);
  EXPECT_EQ(parse({"--global-batch-size", "4"}).steps_per_rollout(), 2);
  EXPECT_EQ(parse({"--num-steps-per-rollout", "4"}).samples_per_step(), 2);
  EXPECT_EQ(parse({"--num-steps-per-rollout", "4", "--global-batch-size", "2"}).steps_per_rollout(), 4);
  const TrainConfig thrice = parse({"--num-steps-per-rollout", "4", "--num-epochs-per-rollout", "3"});
  EXPECT_EQ(thrice.samples_per_step(), 2);
  EXPECT_EQ(thrice.steps_per_epoch(), 4);
  EXPECT_EQ(thrice.steps_per_rollout(), 12);
}

TEST(TrainConfig, EpochsCountRollouts) {
  const TrainConfig config = parse({"--num-epoch", "3"}, without("--num-rollout", true));
  EXPECT_EQ(config.rollouts(10), 7);  // 30 prompts in rollouts of 4
  EXPECT_THROW(config.rollouts(1), UserError);
}

TEST(TrainConfig, BatchThatDoesNotDivideIsRefused) {
  EXPECT_NE(refusal({"--global-batch-size", "3"}).find("does not divide the 8 samples"), std::string::npos);
  EXPECT_NE(refusal({"--num-steps-per-rollout", "5"}).find("does not divide"), std::string::npos);
  EXPECT_NE(refusal({"--num-steps-per-rollout", "4", "--global-batch-size", "8"}).find("give one of the two"),
            std::string::npos);
}

TEST(TrainConfig, GroupOfOneIsRefusedWhereTheEstimatorComparesCompletions) {
  Arguments no_group = kMinimal;
  *(std::find(no_group.begin(), no_group.end(), "--n-samples-per-prompt") + 1) = "1";
  for (const char* estimator : {"grpo", "rloo", "gspo", "cispo"}) {
    const std::string message = refusal({"--advantage-estimator", estimator}, no_group);
    EXPECT_NE(message.find("--n-samples-per-prompt 1"), std::string::npos) << estimator << ": " << message;
  }
  EXPECT_EQ(refusal({"--advantage-estimator", "reinforce_plus_plus"}, no_group), "");
  for (const rl::Estimator& estimator : rl::estimators()) {
    EXPECT_EQ(
        refusal({"--disable-rewards-normalization", "--advantage-estimator", std::string(estimator.name)}, no_group),
        "")
        << "the remedy that the refusal names";
  }
}

// The defaults once refused each other: one completion of each prompt, and an estimator that compares completions.
TEST(TrainConfig, DefaultsOfEstimatorAndGroupWorkTogether) {
  const TrainConfig config = parse({}, without("--n-samples-per-prompt", true));
  EXPECT_EQ(config.loss.loss.advantage_estimator, "grpo");
  EXPECT_EQ(config.rollout.n_samples_per_prompt, 8);
  EXPECT_EQ(GenerateConfig().rollout.n_samples_per_prompt, 1);
  EXPECT_EQ(EvalConfig().rollout.n_samples_per_prompt, 1);
}

TEST(TrainConfig, NumbersOutOfRangeAreRefusedByTheirFlag) {
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"--adam-beta1", "1"}, "--adam-beta1: must be less than 1, not 1"},
      {{"--adam-beta2", "1.5"}, "--adam-beta2: must be less than 1, not 1.5"},
      {{"--adam-beta2", "-0.1"}, "--adam-beta2: must be at least 0, not -0.1"},
      {{"--adam-beta2", "0.99999999"}, ""},
      {{"--adam-eps", "0"}, "--adam-eps: must be greater than 0, not 0"},
      {{"--weight-decay", "-1"}, "--weight-decay: must be at least 0, not -1"},
      {{"--clip-grad", "-1"}, "--clip-grad: must be at least 0, not -1"},
      {{"--lr", "inf"}, "--lr: must be a finite number, not inf"},
      {{"--lr-warmup-iters", "-1"}, "--lr-warmup-iters: must be at least 0, not -1"},
      {{"--max-tokens-per-gpu", "0"}, "--max-tokens-per-gpu: must be at least 1, not 0"},
      {{"--logprob-chunk-rows", "0"}, "--logprob-chunk-rows: must be at least 1, not 0"},
      {{"--rollout-max-batch-tokens", "0"}, "--rollout-max-batch-tokens: must be at least 1, not 0"},
      {{"--rollout-max-running", "0"}, "--rollout-max-running: must be at least 1, not 0"},
      {{"--rm-num-workers", "0"}, "--rm-num-workers: must be at least 1, not 0"},
      {{"--rm-concurrency", "4097"}, "--rm-concurrency: must be at most 4096, not 4097"},
      {{"--rm-timeout", "0"}, "--rm-timeout: must be greater than 0, not 0"},
      {{"--lr-decay-style", "wsd"}, "--lr-decay-style: 'wsd' is none of constant, linear, cosine"},
      {{"--min-lr", "1", "--lr-decay-style", "linear"},
       "--min-lr 1: is above --lr 1e-06, which a decay begins with; lower it"},
  };
  for (const auto& [arguments, expected] : cases) EXPECT_EQ(refusal(arguments), expected) << arguments[0];
}

TEST(TrainConfig, AScheduleEndsWithTheRunUnlessToldOtherwise) {
  const auto schedule = [](const Arguments& more, int64_t steps) { return parse(more).optimizer.run_schedule(steps); };
  EXPECT_EQ(schedule({}, 7).decay_steps, 7);
  EXPECT_EQ(schedule({"--lr-decay-iters", "5"}, 7).decay_steps, 5);
  EXPECT_NO_THROW(schedule({"--lr-warmup-iters", "9"}, 7)) << "a constant rate need not be reached";
  const Arguments cosine = {"--lr-decay-style", "cosine", "--lr-warmup-iters", "7"};
  EXPECT_NO_THROW(schedule(cosine, 8));
  try {
    schedule(cosine, 7);
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "--lr-decay-iters 7 must exceed --lr-warmup-iters 7 when --lr-decay-style is cosine");
  }
}

TEST(TrainConfig, RewardsAreThoseOfTheTableAndThoseOfVimeAreToldWhatToDo) {
  const Arguments no_reward = without("--rm-type", true);
  for (const text::RewardRule& rule : text::kRewardRules) {
    EXPECT_EQ(refusal({"--rm-type", std::string(rule.name)}, no_reward), "");
  }
  EXPECT_EQ(refusal({"--rm-type", "exactly"}, no_reward),
            "--rm-type: 'exactly' is none of exact, math, dapo; did you mean exact?");
  for (const std::string type : {"deepscaler", "f1", "boxed_f1"}) {
    EXPECT_EQ(refusal({"--rm-type", type}, no_reward),
              "--rm-type: '" + type +
                  "' is known from vime and not in Tandem yet; use exact, math, dapo, or --custom-rm-path "
                  "FILE.py:function");
  }
  EXPECT_EQ(refusal({}, no_reward),
            "no reward: give --rm-type exact, math or dapo, or --custom-rm-path FILE.py:function");
}

// --advantage-estimator dr_grpo once could not start: the divisor was checked before it was set.
TEST(TrainConfig, TheDivisorOfDrGrpoIsTheLongestCompletionUnlessItIsGiven) {
  for (const Arguments& row :
       {Arguments{"--advantage-estimator", "dr_grpo"}, Arguments{"--loss-agg-mode", "seq-mean-token-sum-norm"}}) {
    EXPECT_EQ(parse(row).loss_config().loss_norm_tokens, 1024.0);
    Arguments more = row;
    more.insert(more.end(), {"--rollout-max-response-len", "77"});
    EXPECT_EQ(parse(more).loss_config().loss_norm_tokens, 77.0);
    more.insert(more.end(), {"--loss-norm-tokens", "500"});
    EXPECT_EQ(parse(more).loss_config().loss_norm_tokens, 500.0);
  }
  EXPECT_NE(refusal({"--loss-norm-tokens", "-1"}).find("--loss-norm-tokens"), std::string::npos);
}

TEST(TrainConfig, MistakesNameTheFlagAndTheRemedy) {
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"--rollout-temperature", "0"}, "--rollout-temperature 0"},
      {{"--num-epoch", "2"}, "--num-rollout or --num-epoch"},
      {{"--custom-rm-path", "reward.py:fn"}, "--rm-type and --custom-rm-path"},
      {{"--kl-loss-coef", "0.1"}, "without --use-kl-loss"},
      {{"--ref-load", "other"}, "--ref-load: no reference is read without --kl-coef or --use-kl-loss"},
      {{"--num-epochs-per-rollout", "0"}, "--num-epochs-per-rollout: must be at least 1, not 0"},
      {{"--num-epochs-per-rollout", "1001"}, "--num-epochs-per-rollout: must be at most 1000, not 1001"},
      {{"--overlong-buffer-len", "1025"},
       "--overlong-buffer-len 1025: is longer than --rollout-max-response-len 1024; lower it"},
      {{"--loss-agg-mode", "mean"}, "--loss-agg-mode: 'mean' is none of seq-mean-token-mean"},
      {{"--min-lr", "1e-7"}, "--min-lr 1e-07: --lr-decay-style constant"},
      {{"--eval-interval", "2"}, "--eval-prompt-data"},
      {{"--eval-prompt-data", "aime", "a.jsonl"}, "--eval-interval"},
      {{"--eval-prompt-data", "aime", "--eval-interval", "1"}, "pairs"},
      {{"--eval-prompt-data", "a/b", "x.jsonl", "--eval-interval", "1"}, "no name"},
      {{"--eval-prompt-data", "a", "x", "a", "y", "--eval-interval", "1"}, "twice"},
      {{"--advantage-estimator", "grop"}, "grpo"},
      {{"--lr", "-1"}, "--lr"},
      {{"--lr", "fast"}, "--lr"},
      {{"--rollout-top-p", "0"}, "--rollout-top-p"},
      {{"--rollout-batch-sise", "2"}, "--rollout-batch-size"},
      {{"--save-interval", "0"}, "--save-interval"},
      {{"--recompute-granularity", "ful"}, "full"},
  };
  for (const auto& [arguments, expected] : cases) {
    const std::string message = refusal(arguments);
    EXPECT_NE(message.find(expected), std::string::npos) << arguments[0] << ": " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(TrainConfig, MissingPartsAreAskedFor) {
  EXPECT_NE(refusal({}, without("--colocate", false)).find("--colocate"), std::string::npos);
  EXPECT_NE(refusal({}, without("--rm-type", true)).find("no reward"), std::string::npos);
  EXPECT_NE(refusal({}, without("--save", true)).find("--save"), std::string::npos);
  EXPECT_NE(refusal({}, without("--num-rollout", true)).find("--num-rollout"), std::string::npos);
  EXPECT_NE(refusal({}, without("--prompt-data", true)).find("--prompt-data"), std::string::npos);
}

TEST(TrainConfig, PrintedConfigReadsBackToTheSame) {
  base::TemporaryDirectory folder;
  TrainConfig config;
  base::Options options;
  config.visit(options);
  Arguments arguments = kMinimal;
  for (const char* word : {"--rollout-stop", "\n\n", "a\"b", "--lr", "3e-05", "--eps-clip-high", "0.28",
                           "--use-kl-loss", "--kl-loss-coef", "0.001", "--no-apply-chat-template", "--eval-prompt-data",
                           "a", "a.jsonl", "--eval-interval", "5", "--rollout-stop-token-ids", "7", "9"}) {
    arguments.emplace_back(word);
  }
  options.parse(arguments);
  base::write_file_durably(folder / "config.toml", options.config_text());

  TrainConfig again;
  base::Options again_options;
  again.visit(again_options);
  again_options.parse({"--config", folder / "config.toml"});
  again.check();
  EXPECT_EQ(options.config_text(), again_options.config_text());
  EXPECT_EQ(again.rollout.stop, (std::vector<std::string>{"\n\n", "a\"b"}));
  EXPECT_EQ(again.rollout.stop_token_ids, (std::vector<int64_t>{7, 9}));
  EXPECT_EQ(again.data.apply_chat_template, std::optional<bool>(false));
  EXPECT_TRUE(again.loss.needs_reference());
}

TEST(TrainConfig, CommandLineBeatsFileBeatsDefault) {
  base::TemporaryDirectory folder;
  base::write_file_durably(folder / "c.toml", "lr = 0.5\nclip-grad = 2.0\n");
  const TrainConfig config = parse({"--config", folder / "c.toml", "--lr", "0.25"});
  EXPECT_DOUBLE_EQ(config.optimizer.schedule.max_lr, 0.25);
  EXPECT_DOUBLE_EQ(config.optimizer.gradient.clip_grad, 2.0);
  EXPECT_DOUBLE_EQ(config.optimizer.adamw.weight_decay, 0.1);
}

TEST(TrainConfig, RewardKeysAreThoseThatTheRewardHas) {
  const std::string exact = "--reward-key foo: --rm-type exact gives one number, without keys; leave it out";
  EXPECT_EQ(refusal({"--reward-key", "foo"}), exact);
  const Arguments evaluated = {"--eval-interval", "1", "--eval-prompt-data", "a", "a.jsonl", "--eval-reward-key"};
  Arguments other = evaluated;
  other.emplace_back("foo");
  EXPECT_EQ(refusal(other), "--eval-" + exact.substr(2));
  Arguments dapo = kMinimal;
  *std::find(dapo.begin(), dapo.end(), "exact") = "dapo";
  EXPECT_EQ(refusal({"--reward-key", "acc"}, dapo), "");
  EXPECT_EQ(refusal({"--reward-key", "pred"}, dapo),
            "--reward-key pred: --rm-type dapo has the numbers score and acc; leave it out");
}

TEST(TrainConfig, EpochsSayWhatTheyLeaveOut) {
  Arguments base = without("--num-rollout", true);
  const TrainConfig one = parse({"--num-epoch", "1"}, base), four = parse({"--num-epoch", "4"}, base);
  EXPECT_EQ(one.left_out_by_epochs(8), "");
  EXPECT_EQ(one.left_out_by_epochs(9),
            "--num-epoch 1: 9 prompts fill 2 rollouts of --rollout-batch-size 4; the last 1 of the last epoch is left "
            "out");
  EXPECT_EQ(four.left_out_by_epochs(9), "");  // the batches go on over the epochs
  EXPECT_EQ(parse().left_out_by_epochs(9), "");
}

TEST(OutputOptions, CountsTheCheckpointsThatAreStillToCome) {
  OutputOptions output;
  EXPECT_EQ(output.num_checkpoints(10, 10), 0);
  output.save_interval = 4;
  EXPECT_EQ(output.num_checkpoints(10), 3);     // 4, 8, 10
  EXPECT_EQ(output.num_checkpoints(10, 4), 2);  // 8, 10
  EXPECT_EQ(output.num_checkpoints(10, 9), 1);
  EXPECT_EQ(output.num_checkpoints(8), 2);
}

}  // namespace
}  // namespace tandem::config
