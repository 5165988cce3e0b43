// Checks that what is given for evaluations replaces what rollouts have, and that data sets have names of their own.
#include "config/eval_options.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "config/verb_configs.h"
#include "options/options.h"
#include "tandem/error.h"
#include "tests/base/thrown.h"

namespace tandem::config {
namespace {

std::string refusal(const std::vector<std::string>& eval_prompt_data) {
  EvalOptions options;
  options.eval_prompt_data = eval_prompt_data;
  return base::thrown_by([&] { options.data_sets(); });
}

TEST(EvalOptions, DataSetsArePairsWithNamesOfTheirOwn) {
  EvalOptions options;
  EXPECT_FALSE(options.given());
  options.eval_prompt_data = {"aime", "a.jsonl", "math-500", "a.jsonl"};
  EXPECT_TRUE(options.given());
  using Set = std::pair<std::string, std::string>;
  EXPECT_EQ(options.data_sets(), (std::vector<Set>{{"aime", "a.jsonl"}, {"math-500", "a.jsonl"}}));
  options.eval_config = "sets.toml";
  EXPECT_THROW(options.given(), UserError) << "both ways";

  EXPECT_EQ(refusal({"aime", "a.jsonl", "b.jsonl"}), "--eval-prompt-data aime: 3 words; give pairs: NAME FILE.jsonl");
  EXPECT_EQ(refusal(std::vector<std::string>{"a.jsonl"}),
            "--eval-prompt-data a.jsonl: 1 word; give pairs: NAME FILE.jsonl");
  EXPECT_TRUE(refusal({"aime", "a", "aime", "b"}).starts_with("--eval-prompt-data: the name aime is given twice"));
  for (const char* name : {"", "a/b", "a b", "ä", "a\n"})
    EXPECT_NE(refusal({name, "a.jsonl"}).find("is no name"), std::string::npos) << name;
}

TEST(EvalOptions, TheFlagOfTrainingDataIsAnsweredWithThatOfEvaluations) {
  EvalConfig config;
  options::Options options;
  config.visit(options);
  try {
    options.parse({"--hf-checkpoint", "m", "--prompt-data", "f.jsonl"});
    FAIL() << "accepted";
  } catch (const UserError& error) {
    const std::string text = error.what();
    EXPECT_NE(
        text.find("--prompt-data: not supported: an evaluation names its files: give --eval-prompt-data NAME FILE"),
        std::string::npos)
        << text;
  }
}

TEST(EvalOptions, WhatIsNotGivenIsTheRollouts) {
  RolloutOptions base;
  base.n_samples_per_prompt = 8;
  base.temperature = 0.9;
  base.top_p = 0.8;
  base.top_k = 7;
  base.max_response_len = 100;
  base.max_context_len = 200;
  EvalOptions options;
  RolloutOptions rollout = options.rollout(base);
  EXPECT_EQ(rollout.n_samples_per_prompt, 1) << "never the rollout's";
  EXPECT_EQ(rollout.temperature, 0.9);
  EXPECT_EQ(rollout.top_p, 0.8);
  EXPECT_EQ(rollout.top_k, 7);
  EXPECT_EQ(rollout.max_response_len, 100);
  EXPECT_EQ(rollout.max_context_len, 200);
  EXPECT_STREQ(rollout.flags.response, "--rollout-max-response-len") << "an error names the flag that was given";

  options.n_samples_per_eval_prompt = 4;
  options.temperature = 0.0;
  options.top_p = 1.0;
  options.top_k = -1;
  options.max_response_len = 50;
  options.max_context_len = 0;
  rollout = options.rollout(base);
  EXPECT_EQ(rollout.n_samples_per_prompt, 4);
  EXPECT_EQ(rollout.temperature, 0.0);
  EXPECT_EQ(rollout.top_p, 1.0);
  EXPECT_EQ(rollout.top_k, -1);
  EXPECT_EQ(rollout.max_response_len, 50);
  EXPECT_EQ(rollout.max_context_len, 0);
  EXPECT_STREQ(rollout.flags.response, "--eval-max-response-len");
  EXPECT_STREQ(rollout.flags.context, "--eval-max-context-len");
}

TEST(EvalOptions, WhatIsNotGivenIsTheTrainingDatas) {
  DataOptions base;
  base.prompt_data = {"train.jsonl"};
  base.lines.input_key = "question";
  base.lines.label_key = "answer";
  base.max_prompt_len = 64;
  EvalOptions options;
  DataOptions data = options.data(base, "eval.jsonl");
  EXPECT_EQ(data.lines.path, "eval.jsonl");
  EXPECT_TRUE(data.prompt_data.empty());
  EXPECT_EQ(data.lines.input_key, "question");
  EXPECT_EQ(data.lines.label_key, "answer");
  EXPECT_EQ(data.lines.label_flag, base.lines.label_flag + " or --eval-label-key");
  EXPECT_EQ(data.max_prompt_len, 64);
  EXPECT_STREQ(data.max_prompt_flag, "--rollout-max-prompt-len");

  options.input_key = "problem";
  options.label_key = "solution";
  options.max_prompt_len = 0;
  data = options.data(base, "eval.jsonl");
  EXPECT_EQ(data.lines.input_key, "problem");
  EXPECT_EQ(data.lines.label_key, "solution");
  EXPECT_EQ(data.lines.label_flag, "--eval-label-key");
  EXPECT_EQ(data.max_prompt_len, 0);
  EXPECT_STREQ(data.max_prompt_flag, "--eval-max-prompt-len");
}

}  // namespace
}  // namespace tandem::config
