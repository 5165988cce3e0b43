// Configurations of tandem train are accepted, or refused with a remedy.
#include "config/train_config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "config/verb_configs.h"
#include "options/options.h"
#include "reward/reward_rules.h"
#include "rl/losses.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"

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

TrainConfig parsed_run(Arguments more = {}, const Arguments& base = kMinimal) {
  TrainConfig config;
  options::Options options;
  config.visit(options);
  more.insert(more.begin(), base.begin(), base.end());
  options.parse(more);
  config.check();
  return config;
}

// Returns the message that refuses these arguments.
std::string refusal_of_run(const Arguments& more, const Arguments& base = kMinimal) {
  return base::thrown_by([&] { parsed_run(more, base); });
}

Arguments without(const std::string& flag, bool has_value) {
  Arguments arguments = kMinimal;
  const auto at = std::find(arguments.begin(), arguments.end(), flag);
  arguments.erase(at, at + (has_value ? 2 : 1));
  return arguments;
}

TEST(TrainConfig, DefaultsAreThoseOfTheDocumentedCommand) {
  const TrainConfig config = parsed_run();
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
  EXPECT_EQ(parsed_run().samples_per_step(), 8);
  EXPECT_EQ(parsed_run({"--global-batch-size", "4"}).steps_per_rollout(), 2);
  EXPECT_EQ(parsed_run({"--num-steps-per-rollout", "4"}).samples_per_step(), 2);
  EXPECT_EQ(parsed_run({"--num-steps-per-rollout", "4", "--global-batch-size", "2"}).steps_per_rollout(), 4);
  const TrainConfig thrice = parsed_run({"--num-steps-per-rollout", "4", "--num-epochs-per-rollout", "3"});
  EXPECT_EQ(thrice.samples_per_step(), 2);
  EXPECT_EQ(thrice.steps_per_epoch(), 4);
  EXPECT_EQ(thrice.steps_per_rollout(), 12);
}

TEST(TrainConfig, EpochsCountRollouts) {
  const TrainConfig config = parsed_run({"--num-epoch", "3"}, without("--num-rollout", true));
  EXPECT_EQ(config.rollouts(10), 7);  // 30 prompts in rollouts of 4
  EXPECT_THROW(config.rollouts(1), UserError);
}

TEST(TrainConfig, EpochsCountWhatARunThatResumesHasTaken) {
  const TrainConfig config = parsed_run({"--num-epoch", "3"}, without("--num-rollout", true));
  EXPECT_EQ(config.rollouts(10, {.rollouts = 5, .steps = 5, .records = 20}), 7);  // it has had rollouts of 4 all along
  EXPECT_EQ(config.rollouts(10, {.rollouts = 20, .steps = 20, .records = 20}), 22);
  EXPECT_EQ(config.rollouts(10, {.rollouts = 30, .steps = 30, .records = 30}), 30);
  EXPECT_EQ(config.rollouts(10, {.rollouts = 31, .steps = 31, .records = 31}), 30) << "the run is beyond its end";
  EXPECT_EQ(config.left_out_by_epochs(10, {.rollouts = 2, .steps = 2, .records = 10}), "");
  EXPECT_NE(config.left_out_by_epochs(10, {.rollouts = 20, .steps = 20, .records = 20}), "");
}

TEST(TrainConfig, BatchThatDoesNotDivideIsRefused) {
  EXPECT_EQ(refusal_of_run({"--global-batch-size", "3"}),
            "--global-batch-size 3: does not divide the 8 samples of a rollout (--rollout-batch-size 4 x "
            "--n-samples-per-prompt 2); give 2 or 4");
  EXPECT_NE(refusal_of_run({"--num-steps-per-rollout", "5"}).find("; give 4 or 8"), std::string::npos);
  EXPECT_NE(refusal_of_run({"--num-steps-per-rollout", "500"}).find("; give 8"), std::string::npos);
  EXPECT_NE(refusal_of_run({"--num-steps-per-rollout", "4", "--global-batch-size", "8"}).find("give one of the two"),
            std::string::npos);
}

TEST(TrainConfig, APlanRefusesTheDevicesAndBatchesThatARunWould) {
  const auto refusal_of_plan = [](Arguments more) {
    return base::thrown_by([&] {
      PlanConfig plan;
      options::Options options;
      plan.visit(options);
      more.insert(more.begin(), {"--hf-checkpoint", "model"});
      options.parse(more);
      plan.train.check_shape();
    });
  };
  EXPECT_EQ(refusal_of_plan({}), "");
  EXPECT_EQ(refusal_of_plan({"--actor-num-gpus-per-node", "4", "--tensor-model-parallel-size", "2"}), "");
  EXPECT_NE(refusal_of_plan({"--actor-num-gpus-per-node", "3", "--tensor-model-parallel-size", "2"})
                .find("--actor-num-gpus-per-node 3 is no multiple of it"),
            std::string::npos);
  EXPECT_NE(refusal_of_plan(
                {"--tensor-model-parallel-size", "2", "--actor-num-gpus-per-node", "2", "--rollout-num-gpus", "3"})
                .find("give a multiple of 2"),
            std::string::npos);
  EXPECT_NE(refusal_of_plan({"--rollout-batch-size", "4", "--global-batch-size", "3"}).find("does not divide"),
            std::string::npos);
}

TEST(TrainConfig, GroupOfOneIsRefusedWhereTheEstimatorComparesCompletions) {
  Arguments no_group = kMinimal;
  *(std::find(no_group.begin(), no_group.end(), "--n-samples-per-prompt") + 1) = "1";
  for (const char* estimator : {"grpo", "rloo", "gspo", "cispo"}) {
    const std::string message = refusal_of_run({"--advantage-estimator", estimator}, no_group);
    EXPECT_NE(message.find("--n-samples-per-prompt 1"), std::string::npos) << estimator << ": " << message;
  }
  EXPECT_EQ(refusal_of_run({"--advantage-estimator", "reinforce_plus_plus"}, no_group), "");
  for (const rl::Estimator& estimator : rl::estimators()) {
    EXPECT_EQ(refusal_of_run({"--disable-rewards-normalization", "--advantage-estimator", std::string(estimator.name)},
                             no_group),
              "")
        << "the remedy that the refusal_of_run names";
  }
}

// The defaults once refused each other: one completion of each prompt, and an estimator that compares completions.
TEST(TrainConfig, DefaultsOfEstimatorAndGroupWorkTogether) {
  const TrainConfig config = parsed_run({}, without("--n-samples-per-prompt", true));
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
      {{"--micro-batches-multiple", "0"}, "--micro-batches-multiple: must be at least 1, not 0"},
      {{"--gradient-sum-group", "0"}, "--gradient-sum-group: must be at least 1, not 0"},
      {{"--gradient-sum-group", "65"}, "--gradient-sum-group: must be at most 64, not 65"},
      {{"--logprob-chunk-rows", "0"}, "--logprob-chunk-rows: must be at least 1, not 0"},
      {{"--rollout-max-batch-tokens", "0"}, "--rollout-max-batch-tokens: must be at least 1, not 0"},
      {{"--rollout-temperature", "1e-9"}, "--rollout-temperature: must be 0 or at least 1e-04, not 1e-9"},
      {{"--eval-temperature", "1e-9"}, "--eval-temperature: must be 0 or at least 1e-04, not 1e-9"},
      {{"--rollout-max-running", "0"}, "--rollout-max-running: must be at least 1, not 0"},
      {{"--rm-num-workers", "0"}, "--rm-num-workers: must be at least 1, not 0"},
      {{"--rm-concurrency", "4097"}, "--rm-concurrency: must be at most 4096, not 4097"},
      {{"--rm-timeout", "0"}, "--rm-timeout: must be greater than 0, not 0"},
      {{"--lr-decay-style", "wsd"}, "--lr-decay-style: 'wsd' is none of constant, linear, cosine, WSD"},
      {{"--min-lr", "1", "--lr-decay-style", "linear"},
       "--min-lr 1: is above --lr 1e-06, which a decay begins with; lower it"},
  };
  for (const auto& [arguments, expected] : cases) EXPECT_EQ(refusal_of_run(arguments), expected) << arguments[0];
}

TEST(TrainConfig, AScheduleEndsWithTheRunUnlessToldOtherwise) {
  const auto schedule = [](const Arguments& more, int64_t steps) {
    return parsed_run(more).optimizer.run_schedule(steps);
  };
  EXPECT_EQ(schedule({}, 7).decay_steps, 7);
  EXPECT_EQ(schedule({"--lr-decay-iters", "5"}, 7).decay_steps, 5);
  EXPECT_NO_THROW(schedule({"--lr-warmup-iters", "9"}, 7)) << "a constant rate need not be reached";
  const Arguments cosine = {"--lr-decay-style", "cosine", "--lr-warmup-iters", "7"};
  EXPECT_NO_THROW(schedule(cosine, 8));
  try {
    schedule(cosine, 7);
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "--lr-warmup-iters 7: --lr-decay-style cosine falls after it, until the run ends after 7 optimizer "
                 "steps (--num-rollout, --num-epoch); lower it, or make the run longer");
  }
}

TEST(TrainConfig, RewardsAreThoseOfTheTableAndThoseOfVimeAreToldWhatToDo) {
  const Arguments no_reward = without("--rm-type", true);
  for (const reward::RewardRule& rule : reward::kRewardRules) {
    EXPECT_EQ(refusal_of_run({"--rm-type", std::string(rule.name)}, no_reward), "");
  }
  EXPECT_EQ(
      refusal_of_run({"--rm-type", "exactly"}, no_reward),
      "--rm-type: 'exactly' is none of exact, math, dapo, deepscaler, f1, gpqa, random, none, code, ifbench, "
      "remote_rm, "
      "boxed_exact, boxed_math, boxed_dapo, boxed_deepscaler, boxed_f1, boxed_gpqa, boxed_random; did you mean exact?");
  for (const std::string type : {"boxed_ifbench", "boxed_remote_rm"}) {
    EXPECT_EQ(refusal_of_run({"--rm-type", type}, no_reward),
              "--rm-type: '" + type +
                  "' is known from slime and not in Tandem; use exact, math, "
                  "dapo, deepscaler, f1, gpqa, random, none, code or ifbench "
                  "or remote_rm, or --custom-rm-path FILE.py:function");
  }
  EXPECT_EQ(refusal_of_run({"--rm-type", "ifeval"}, no_reward),
            "--rm-type: 'ifeval' is none of Tandem's names; ifbench checks the instructions of IFEval and of IFBench");
  EXPECT_EQ(refusal_of_run({}, no_reward), "");  // lines may name theirs, which is checked when they are read
}

TEST(TrainConfig, RewardsThatAreAddedUpAreNamedAndWeighted) {
  const auto named = [](const Arguments& more) {
    std::string text;
    for (const RewardOptions::Source& source : parsed_run(more, without("--rm-type", true)).reward.sources()) {
      text += fmt::format("{}={:g} ", source.name, source.weight);
    }
    return text;
  };
  EXPECT_EQ(named({"--rm-type", "math"}), "math=1 ");
  EXPECT_EQ(named({"--custom-rm-path", "a.py:f", "b.py:f", "--rm-type", "f1", "boxed_f1", "f1", "--reward-weights", "1",
                   "-2", "0.5", "0", "3"}),
            "f1=1 boxed_f1=-2 f1_2=0.5 f=0 f_2=3 ");
  EXPECT_EQ(named({"--custom-rm-path", "a.py:f_2", "b.py:f", "c.py:f"}), "f_2=1 f=1 f_3=1 ");
  EXPECT_EQ(named({"--rm-url", "http://h:1/x"}), "remote_rm=1 ");
  EXPECT_EQ(named({"--rm-url", "http://h:1/x", "--custom-rm-path", "a.py:f"}), "f=1 ");
}

TEST(TrainConfig, TheLowestOfASumCountsWeightsAndWhatLinesAskFor) {
  const auto lowest = [](const Arguments& more, const std::set<std::string>& lines = {}) {
    RewardOptions reward = parsed_run(more, without("--rm-type", true)).reward;
    reward.line_types = lines;
    return reward.lowest_reward();
  };
  EXPECT_EQ(lowest({"--rm-type", "dapo"}), -1.0);
  EXPECT_EQ(lowest({"--rm-type", "dapo", "f1"}), -1.0);
  EXPECT_EQ(lowest({"--rm-type", "dapo", "f1", "--reward-weights", "2", "-0.5"}), -2.5);
  EXPECT_EQ(lowest({"--rm-type", "math"}, {"dapo"}), -1.0);
  EXPECT_EQ(lowest({}, {"f1", "math"}), 0.0);
  EXPECT_EQ(lowest({"--rm-type", "f1", "--custom-rm-path", "a.py:f"}), std::nullopt);
  EXPECT_EQ(lowest({"--rm-url", "http://h/"}), std::nullopt);
  EXPECT_EQ(lowest({"--rm-type", "math", "--rm-url", "http://h/"}, {"remote_rm"}), std::nullopt);
}

TEST(TrainConfig, MistakesInRewardsNameTheFlagAndTheRemedy) {
  const Arguments base = without("--rm-type", true);
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"--rm-type", "f1", "math", "--reward-weights", "1"},
       "--reward-weights: 1 weight given for 2 rewards (f1, math); give one for each, in this order"},
      {{"--rm-type", "f1", "--reward-weights", "nan"}, "--reward-weights: must be a number, not nan"},
      {{"--rm-type", "f1", "--reward-weights", "inf"}, "--reward-weights: must be a finite number, not inf"},
      {{"--rm-type", "remote_rm"}, "--rm-type remote_rm: needs --rm-url http://HOST:PORT/PATH"},
      {{"--rm-url", "h:80"}, "--rm-url: the address does not begin with http:// or https://"},
      {{"--rm-url", "ftp://h"}, "--rm-url: the address does not begin with http:// or https://"},
      {{"--rm-url", "http://"}, "--rm-url: names no host"},
      {{"--rm-url", "http://:80/"}, "--rm-url: names no host"},
      {{"--rm-url", "http://h:/"}, "--rm-url: names no host, or no port behind the colon"},
      {{"--rm-url", "http://u:p@h/"}, "--rm-url: holds a user name or password"},
      {{"--rm-url", "http://h/a b"}, "--rm-url: has white space"},
      {{"--rm-url", "http://h/", "--rm-retries", "-1"}, "--rm-retries: must be at least 0"},
      {{"--rm-type", "f1", "--rm-env", "A=b"}, "--rm-env A=b: give the name of a variable alone"},
      {{"--rm-type", "f1", "--rm-env", "A", "1A"}, "--rm-env 1A: give the name of a variable alone"},
      {{"--rm-type", "f1", "--rm-env", "TANDEM_SECRET_FILE"}, "--rm-env TANDEM_SECRET_FILE: is Tandem's own"},
      {{"--custom-rm-path", "reward.py"}, "--custom-rm-path reward.py: write it as FILE.py:FUNCTION"},
      {{"--rm-type", "exact", "f1", "--reward-key", "acc"},
       "--reward-key acc: --rm-type exact f1 have no number of that name; leave it out"},
  };
  for (const auto& [arguments, expected] : cases) {
    const std::string message = refusal_of_run(arguments, base);
    EXPECT_NE(message.find(expected), std::string::npos) << arguments.back() << ": " << message;
    EXPECT_EQ(message.find("u:p"), std::string::npos) << message;
  }
  EXPECT_EQ(refusal_of_run({"--rm-type", "exact", "dapo", "--reward-key", "acc"}, base), "");
}

// A single reward is written as before there could be several, so that files and checkpoints of older runs mean the
// same.
TEST(TrainConfig, OneRewardIsAValueAndSeveralAreAList) {
  const auto value = [](const Arguments& more) {
    TrainConfig config;
    options::Options options;
    config.visit(options);
    Arguments arguments = without("--rm-type", true);
    arguments.insert(arguments.end(), more.begin(), more.end());
    options.parse(arguments);
    return base::dump_json(options.values()["rm-type"]) + " " + options.result_options()["rm-type"] + " " +
           options.result_options()["reward-weights"];
  };
  EXPECT_EQ(value({}), "null unset unset");
  EXPECT_EQ(value({"--rm-type", "f1"}), "\"f1\" f1 unset");
  EXPECT_EQ(value({"--rm-type", "f1", "math", "--reward-weights", "1", "2"}), "[\"f1\",\"math\"] f1 math 1 2");
  base::TemporaryDirectory folder;
  base::write_file_durably(folder / "c.toml", "rm-type = [\"f1\", \"math\"]\nreward-weights = [1, 0.5]\n");
  EXPECT_EQ(value({"--config", folder / "c.toml"}), "[\"f1\",\"math\"] f1 math 1 0.5");
  base::write_file_durably(folder / "c.toml", "rm-type = \"f1\"\n");
  EXPECT_EQ(value({"--config", folder / "c.toml"}), "\"f1\" f1 unset");
}

// --advantage-estimator dr_grpo once could not start: the divisor was checked before it was set.
TEST(TrainConfig, TheDivisorOfDrGrpoIsTheLongestCompletionUnlessItIsGiven) {
  for (const Arguments& row :
       {Arguments{"--advantage-estimator", "dr_grpo"}, Arguments{"--loss-agg-mode", "seq-mean-token-sum-norm"}}) {
    EXPECT_EQ(parsed_run(row).loss_config().loss_norm_tokens, 1024.0);
    Arguments more = row;
    more.insert(more.end(), {"--rollout-max-response-len", "77"});
    EXPECT_EQ(parsed_run(more).loss_config().loss_norm_tokens, 77.0);
    more.insert(more.end(), {"--loss-norm-tokens", "500"});
    EXPECT_EQ(parsed_run(more).loss_config().loss_norm_tokens, 500.0);
  }
  EXPECT_NE(refusal_of_run({"--loss-norm-tokens", "-1"}).find("--loss-norm-tokens"), std::string::npos);
}

TEST(TrainConfig, MistakesNameTheFlagAndTheRemedy) {
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"--rollout-temperature", "0"}, "--rollout-temperature 0"},
      {{"--num-epoch", "2"}, "--num-rollout or --num-epoch"},
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
    const std::string message = refusal_of_run(arguments);
    EXPECT_NE(message.find(expected), std::string::npos) << arguments[0] << ": " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(TrainConfig, MissingPartsAreAskedFor) {
  EXPECT_NE(refusal_of_run({}, without("--colocate", false)).find("--colocate"), std::string::npos);
  EXPECT_NE(refusal_of_run({}, without("--save", true)).find("--save"), std::string::npos);
  EXPECT_NE(refusal_of_run({}, without("--num-rollout", true)).find("--num-rollout"), std::string::npos);
  EXPECT_NE(refusal_of_run({}, without("--prompt-data", true)).find("--prompt-data"), std::string::npos);
}

TEST(TrainConfig, PrintedConfigReadsBackToTheSame) {
  base::TemporaryDirectory folder;
  TrainConfig config;
  options::Options options;
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
  options::Options again_options;
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
  const TrainConfig config = parsed_run({"--config", folder / "c.toml", "--lr", "0.25"});
  EXPECT_DOUBLE_EQ(config.optimizer.schedule.max_lr, 0.25);
  EXPECT_DOUBLE_EQ(config.optimizer.gradient.clip_grad, 2.0);
  EXPECT_DOUBLE_EQ(config.optimizer.adamw.weight_decay, 0.1);
}

TEST(TrainConfig, RewardKeysAreThoseThatTheRewardHas) {
  const std::string exact = "--reward-key foo: --rm-type exact gives one number, without keys; leave it out";
  EXPECT_EQ(refusal_of_run({"--reward-key", "foo"}), exact);
  const Arguments evaluated = {"--eval-interval", "1", "--eval-prompt-data", "a", "a.jsonl", "--eval-reward-key"};
  Arguments other = evaluated;
  other.emplace_back("foo");
  EXPECT_EQ(refusal_of_run(other), "--eval-" + exact.substr(2));
  Arguments dapo = kMinimal;
  *std::find(dapo.begin(), dapo.end(), "exact") = "dapo";
  EXPECT_EQ(refusal_of_run({"--reward-key", "acc"}, dapo), "");
  EXPECT_EQ(refusal_of_run({"--reward-key", "pred"}, dapo),
            "--reward-key pred: --rm-type dapo has the numbers score and acc; leave it out");
}

TEST(TrainConfig, EpochsSayWhatTheyLeaveOut) {
  Arguments base = without("--num-rollout", true);
  const TrainConfig one = parsed_run({"--num-epoch", "1"}, base), four = parsed_run({"--num-epoch", "4"}, base);
  EXPECT_EQ(one.left_out_by_epochs(8), "");
  EXPECT_EQ(one.left_out_by_epochs(9),
            "--num-epoch 1: 9 prompts fill 2 rollouts of --rollout-batch-size 4; the last 1 of the last epoch is left "
            "out");
  EXPECT_EQ(four.left_out_by_epochs(9), "");  // batches continue over the epochs
  EXPECT_EQ(parsed_run().left_out_by_epochs(9), "");
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
