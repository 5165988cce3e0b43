// Distillation that learns from the answers of its data too (--opd-on-policy-share): which prompts take their answer,
// what becomes of such a sample, and that ranks, rollout workers and resumed runs agree bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "rl/distillation.h"
#include "tests/cli/ranks/rank_runs.h"
#include "tests/cli/tiny_run.h"
#include "tests/cli/workers/worker_runs.h"
#include "tests/model/reward_model_files.h"

namespace tandem::cli {
namespace {

const std::string kStudent = "tests/golden/models/qwen2-tied", kTeacher = kModel;
constexpr int kLines = 5;
constexpr int32_t kEos = 473;

// The model's chat template writes this before every answer, as it does for `tandem sft`.
const std::string kNoThoughts = "<think>\n\n</think>\n\n";

std::string answer_of(int line) { return "The answer is " + std::to_string(line + 1) + "."; }

base::Json line_of(int line) {
  return {{"prompt", {{{"role", "user"}, {"content", "What is " + std::to_string(line) + "+1?"}}}},
          {"label", std::to_string(line + 1)},
          {"response", answer_of(line)}};
}

class GivenAnswers : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }

  void write_prompts(const std::vector<base::Json>& lines) const {
    std::string text;
    for (const base::Json& line : lines) text += base::dump_json(line) + "\n";
    base::write_file_durably(path("prompts.jsonl"), text);
  }
  void SetUp() override {
    std::vector<base::Json> lines;
    for (int i = 0; i < kLines; ++i) lines.push_back(line_of(i));
    write_prompts(lines);
  }

  // Returns the arguments of three rollouts of six prompts, in two optimizer steps each.
  Arguments arguments(const std::string& name, const std::string& share, const Arguments& more = {}) const {
    Arguments words = train_arguments(
        path(name), {"--use-opd", "--opd-teacher-load", kTeacher, "--opd-loss-coef", "1", "--opd-kl-coef", "0",
                     "--no-opd-use-task-rewards", "--opd-beta", "0.5", "--save-interval", "1", "--dtype", "float32",
                     "--num-threads", "1", "--max-tokens-per-gpu", "96"});
    words = with_custom_reward(words, write_reward(folder_));
    words = with_flag(words, "--hf-checkpoint", kStudent);
    words = with_flag(words, "--prompt-data", path("prompts.jsonl"));
    words = with_flag(words, "--rollout-batch-size", "6");
    words = with_flag(words, "--n-samples-per-prompt", "1");
    words = with_flag(words, "--global-batch-size", "3");
    words = with_flag(words, "--num-rollout", "3");
    words = with_flag(words, "--rollout-max-response-len", "24");
    words = with_flag(words, "--save-debug-rollout-data", path(name + "/{rollout_id}.jsonl"));
    if (!share.empty()) words = with_flag(words, "--opd-on-policy-share", share);
    for (size_t i = 0; i < more.size(); i += 2) words = with_flag(words, more[i], more[i + 1]);
    return words;
  }
  void train(const std::string& name, const std::string& share, const Arguments& more = {}) const {
    const Captured result = run(arguments(name, share, more));
    ASSERT_EQ(result.code, 0) << name << ": " << result.err;
  }
  std::vector<base::Json> samples(const std::string& name, int rollout) const {
    return json_lines(path(name + "/" + std::to_string(rollout) + ".jsonl"));
  }
  std::vector<base::Json> records(const std::string& name, const std::string& key) const {
    std::vector<base::Json> result;
    for (base::Json& record : json_lines(path(name + "/metrics.jsonl")))
      if (record.contains(key)) result.push_back(std::move(record));
    return result;
  }
  void expect_refused(const Arguments& words, const std::string& says) const {
    expect_one_line_failure(run(words), 2, says);
  }

  base::TemporaryDirectory folder_;
};

TEST_F(GivenAnswers, AShareOfThePromptsHasTheAnswerOfItsLine) {
  train("half", "0.5");
  train("all", "");
  rl::OpdConfig opd;
  opd.is_on = true;
  opd.on_policy_share = 0.5;
  for (int rollout = 0; rollout < 3; ++rollout) {
    const std::vector<base::Json> half = samples("half", rollout), all = samples("all", rollout);
    ASSERT_EQ(half.size(), 6U);
    double num_given = 0.0;
    for (size_t i = 0; i < half.size(); ++i) {
      const uint64_t group = half[i].at("group_id").get<uint64_t>();
      EXPECT_EQ(group, static_cast<uint64_t>(rollout) * 6 + i);
      const bool is_given = rl::takes_answer(opd, 42, group);
      EXPECT_EQ(half[i].contains("off_policy"), is_given);
      EXPECT_EQ(half[i].at("prompt_tokens"), all[i].at("prompt_tokens"));
      EXPECT_EQ(half[i].at("reward").is_null(), is_given) << "no reward is asked for a given answer";
      EXPECT_EQ(half[i].contains("rollout_log_probs"), !is_given);
      if (!is_given) {
        if (rollout == 0) {
          EXPECT_EQ(half[i].at("response_tokens"), all[i].at("response_tokens")) << "draws have names";
        }
        continue;
      }
      num_given += 1.0;
      const auto tokens = half[i].at("response_tokens").get<std::vector<int32_t>>();
      EXPECT_EQ(half[i].at("response"), kNoThoughts + answer_of(static_cast<int>(group % kLines)));
      EXPECT_EQ(tokens.back(), kEos);
      EXPECT_EQ(std::ranges::count(tokens, kEos), 1);
      EXPECT_EQ(half[i].at("loss_mask"), base::Json(std::vector<int>(tokens.size(), 1)));
      EXPECT_EQ(half[i].at("advantages"), base::Json(std::vector<double>{0.0}));
      EXPECT_EQ(half[i].at("status"), "completed");
      EXPECT_EQ(half[i].at("weight_versions"), base::Json::array());
    }
    EXPECT_EQ(records("half", "rollout/opd_off_policy_share")
                  .at(static_cast<size_t>(rollout))
                  .at("rollout/opd_off_policy_share"),
              num_given / 6.0);
  }
  EXPECT_TRUE(records("all", "rollout/opd_off_policy_share").empty());
  // Log-probs of engine and trainer are still equal for completions that were sampled; given answers have none of the
  // engine.
  const std::vector<base::Json> steps = records("half", "train/opd_loss");
  ASSERT_EQ(steps.size(), 6U);
  for (size_t i = 0; i < steps.size(); i += 2) {
    EXPECT_EQ(steps[i].value("train/train_rollout_logprob_abs_diff", 0.0), 0.0);
    EXPECT_EQ(steps[i].value("train/on_policy_logprob_abs_diff", 0.0), 0.0);
    EXPECT_GT(steps[i].at("train/opd_loss").get<double>(), 0.0);
    EXPECT_EQ(steps[i].at("train/pg_loss"), 0.0);
  }
  EXPECT_NE(weights_of(path("half")), weights_of(path("all")));
}

TEST_F(GivenAnswers, NothingIsSampledAtShareZeroAndShareOneIsTheDefault) {
  train("none", "0");
  for (const base::Json& sample : samples("none", 2)) EXPECT_TRUE(sample.contains("off_policy"));
  const std::vector<base::Json> steps = records("none", "train/opd_loss");
  ASSERT_EQ(steps.size(), 6U);
  EXPECT_LT(steps[5].at("train/opd_loss").get<double>(), steps[0].at("train/opd_loss").get<double>());
  for (const base::Json& step : steps) {
    EXPECT_EQ(step.at("train/loss"), step.at("train/opd_loss"));
    EXPECT_FALSE(step.contains("train/train_rollout_logprob_abs_diff"));
  }
  const base::Json rollout = records("none", "rollout/step").at(0);
  EXPECT_EQ(rollout.at("rollout/opd_off_policy_share"), 1.0);
  EXPECT_FALSE(rollout.contains("rollout/raw_reward"));
  EXPECT_FALSE(rollout.contains("rollout/rollout_log_probs"));
  train("one", "1");
  train("default", "");
  EXPECT_EQ(timeless_metrics(path("one")), timeless_metrics(path("default")));
  EXPECT_EQ(weights_of(path("one")), weights_of(path("default")));
}

// The answer becomes the tokens that `tandem sft` trains on: a policy that is its own teacher has nothing to learn.
TEST_F(GivenAnswers, APolicyThatIsItsOwnTeacherLosesNothingOnThem) {
  train("self", "0", {"--opd-teacher-load", kStudent, "--num-rollout", "1", "--opd-beta", "0"});
  EXPECT_NEAR(records("self", "train/opd_loss").at(0).at("train/opd_loss").get<double>(), 0.0, 1e-6);
}

// The samples of the policy may have a policy term beside: the KL by sampled tokens, whitened over them alone.
TEST_F(GivenAnswers, TheOthersMayHaveAPolicyTermBeside) {
  train("beside", "0.5", {"--opd-kl-coef", "0.5", "--advantage-estimator", "reinforce_plus_plus"});
  for (const base::Json& sample : samples("beside", 0)) {
    if (sample.contains("off_policy")) {
      EXPECT_EQ(sample.at("advantages"), base::Json(std::vector<double>{0.0}));
      EXPECT_FALSE(sample.contains("teacher_log_probs"));
    } else {
      EXPECT_EQ(sample.at("advantages").size(), sample.at("response_tokens").size());
    }
  }
  for (size_t i = 0; i < 6; i += 2) {
    const base::Json step = records("beside", "train/opd_loss").at(i);
    EXPECT_EQ(step.value("train/train_rollout_logprob_abs_diff", 0.0), 0.0);
  }
}

// A reward function, a reward model and the mean of their sum know the samples of the policy alone.
TEST_F(GivenAnswers, RewardsAreOfTheOthersAlone) {
  const std::string architecture = "Gemma3TextForSequenceClassification";
  model::write_reward_model("tests/golden/models/gemma3", path("judge"), architecture,
                            model::golden_head(architecture, 32));
  const auto rewarded = [&](const std::string& name, const std::string& share) {
    Arguments words = arguments(name, share,
                                {"--rm-model", path("judge"), "--opd-kl-coef", "0.5", "--num-rollout", "1",
                                 "--advantage-estimator", "reinforce_plus_plus"});
    std::erase(words, "--no-opd-use-task-rewards");
    const Captured result = run(words);
    ASSERT_EQ(result.code, 0) << name << ": " << result.err;
  };
  rewarded("some", "0.5");
  double sum = 0.0, num_sampled = 0.0;
  for (const base::Json& sample : samples("some", 0)) {
    if (sample.contains("off_policy")) {
      EXPECT_TRUE(sample.at("reward").is_null());
      EXPECT_EQ(sample.at("advantages"), base::Json(std::vector<double>{0.0}));
      continue;
    }
    sum += sample.at("reward").get<double>();
    num_sampled += 1.0;
    EXPECT_NE(sample.at("advantages").at(0), 0.0);
  }
  ASSERT_GT(num_sampled, 0.0);
  const base::Json rollout = records("some", "rollout/step").at(0);
  EXPECT_NEAR(rollout.at("rollout/raw_reward").get<double>(), sum / num_sampled, 1e-6);
  EXPECT_EQ(rollout.at("rollout/grader_failed"), 0.0);
  rewarded("none", "0");
  EXPECT_FALSE(records("none", "rollout/step").at(0).contains("rollout/raw_reward"));
  // The page of a run shows them.
  const Captured viewed = run({"view", path("some")});
  EXPECT_EQ(viewed.code, 0) << viewed.err;
}

TEST_F(GivenAnswers, RanksWorkersAndResumedRunsAgreeBitForBit) {
  const Arguments whole = arguments("whole", "0.5");
  ASSERT_EQ(run(whole).code, 0);
  const Results want(path("whole"));
  const Captured two = run_program(with_ranks(arguments("two", "0.5"), 2));
  ASSERT_EQ(two.code, 0) << two.err;
  expect_equal(Results(path("two")), want, "two ranks");
  const Captured workers = run_program(with_workers(arguments("workers", "0.5"), 1, 1));
  ASSERT_EQ(workers.code, 0) << workers.err;
  expect_equal(Results(path("workers")), want, "a rollout worker");
  ASSERT_EQ(run(arguments("resumed", "0.5", {"--num-rollout", "1"})).code, 0);
  const Captured rest = run(arguments("resumed", "0.5", {"--load", path("resumed")}));
  ASSERT_EQ(rest.code, 0) << rest.err;
  expect_equal(Results(path("resumed")), want, "resumed");
  expect_refused(arguments("resumed", "0.25", {"--load", path("resumed")}), "--opd-on-policy-share");
  // Nobody samples anything, and the ranks still end.
  const Captured none = run_program(with_ranks(arguments("none", "0"), 2));
  EXPECT_EQ(none.code, 0) << none.err;
}

TEST_F(GivenAnswers, TextsAndOtherKeysAreReadAsTandemSftReadsThem) {
  std::vector<base::Json> lines;
  for (int i = 0; i < kLines; ++i)
    lines.push_back({{"prompt", std::to_string(i) + "+1="}, {"label", std::to_string(i + 1)}, {"gold", "it is 7"}});
  lines[1]["gold"] = "";
  write_prompts(lines);
  train("texts", "0", {"--opd-answer-key", "gold", "--num-rollout", "1"});
  const std::vector<base::Json> texts = samples("texts", 0);
  ASSERT_EQ(texts.size(), 6U);
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(texts[i].at("response"), i == 1 ? "" : "it is 7");
    EXPECT_EQ(texts[i].at("response_tokens").back(), kEos);
  }
  EXPECT_EQ(texts[1].at("response_tokens").size(), 1U) << "an empty answer is the token that ends it";
  train("labels", "0", {"--opd-answer-key", "label", "--num-rollout", "1"});
  EXPECT_EQ(samples("labels", 0).at(0).at("response"), "1");
}

// GKD's seq_kd by two commands: the teacher's samples are the given answers, token for token.
TEST_F(GivenAnswers, TheTeachersSamplesAreTrainedOnAsItSampledThem) {
  const std::string teacher = "tests/golden/models/olmo2";  // it samples no id that the policy does not have
  const Captured sampled =
      run({"generate", "--hf-checkpoint", teacher, "--prompt-data", path("prompts.jsonl"), "--dtype", "float32",
           "--rollout-max-response-len", "12", "--output", path("taught.jsonl")});
  ASSERT_EQ(sampled.code, 0) << sampled.err;
  const std::vector<base::Json> taught = json_lines(path("taught.jsonl"));
  ASSERT_EQ(taught.size(), static_cast<size_t>(kLines));
  train("taught", "0",
        {"--prompt-data", path("taught.jsonl"), "--opd-answer-key", "completions.0.tokens", "--opd-teacher-load",
         teacher});
  for (int rollout = 0; rollout < 3; ++rollout) {
    for (const base::Json& sample : samples("taught", rollout)) {
      const base::Json& line = taught.at(sample.at("group_id").get<size_t>() % taught.size());
      EXPECT_EQ(sample.at("prompt_tokens"), line.at("prompt_tokens"));
      EXPECT_EQ(sample.at("response_tokens"), line.at("completions").at(0).at("tokens"));
      EXPECT_EQ(sample.at("response"), line.at("completions").at(0).at("text"));
      EXPECT_EQ(sample.at("label"), line.at("label"));
    }
  }
  const std::vector<base::Json> steps = records("taught", "train/opd_loss");
  EXPECT_LT(steps.back().at("train/opd_loss").get<double>(), steps.front().at("train/opd_loss").get<double>());
  train("by_text", "0.5",
        {"--prompt-data", path("taught.jsonl"), "--opd-answer-key", "completions.0.text", "--num-rollout", "1",
         "--rollout-max-response-len", "64"});
  // An id that the policy does not have, an answer in another form, and one that does not fit are refused.
  const auto refused_with = [&](const base::Json& answer, const std::string& says) {
    std::vector<base::Json> lines = taught;
    lines[1]["completions"][0]["tokens"] = answer;
    write_prompts(lines);
    expect_refused(arguments("r", "0", {"--opd-answer-key", "completions.0.tokens"}), "prompts.jsonl:2: " + says);
  };
  refused_with({1, 512}, "completions.0.tokens has 512, which is no token id of the model (0 to 503)");
  refused_with({1, -1}, "completions.0.tokens has -1, which is no token id");
  refused_with({1, 2.5}, "completions.0.tokens has 2.5, which is no token id");
  refused_with("text", "completions.0.tokens is no list of token ids, and that of the file's first line is");
  refused_with(base::Json::array(), "completions.0.tokens is no list of token ids");
  refused_with(std::vector<int>(25, 1), "the answer has 25 tokens, and a completion of this run at most 24");
}

TEST_F(GivenAnswers, WhatCannotBeIsRefusedBeforeAnythingIsSampled) {
  const std::string flag = "--opd-on-policy-share 0.5 and ";
  expect_refused(arguments("r", "0.5", {"--n-samples-per-prompt", "2", "--rollout-batch-size", "3"}),
                 flag + "--n-samples-per-prompt 2: a line gives one answer");
  expect_refused(arguments("r", "0.5", {"--dynamic-sampling-filter-path", path("f.py:keep")}),
                 flag + "--dynamic-sampling-filter-path");
  expect_refused(arguments("r", "0.5", {"--load-debug-rollout-data", path("{rollout_id}.jsonl")}),
                 flag + "--load-debug-rollout-data");
  expect_refused(arguments("r", "0.5", {"--top-entropy-quantile", "0.5"}), "--top-entropy-quantile");
  expect_refused(arguments("r", "0.5", {"--opd-loss-coef", "0", "--opd-kl-coef", "1", "--opd-beta", "1"}),
                 "--opd-on-policy-share: does nothing without --opd-loss-coef");
  expect_refused(arguments("r", "", {"--opd-answer-key", "gold"}),
                 "--opd-answer-key: does nothing without --opd-on-policy-share below 1");
  expect_refused(arguments("r", "1.5"), "--opd-on-policy-share");
  expect_refused(arguments("r", "0.5", {"--rollout-max-response-len", "4"}), "prompts.jsonl:1: the answer has ");
  std::vector<base::Json> lines = {line_of(0), line_of(1), line_of(2)};
  lines[1].erase("response");
  write_prompts(lines);
  expect_refused(arguments("r", "0.5"), "prompts.jsonl:2: the line has no answer under response");
  lines[1]["response"] = nullptr;
  write_prompts(lines);
  expect_refused(arguments("r", "0.5"), "prompts.jsonl:2: the line has no answer under response");
  lines[1]["response"] = 7;
  write_prompts(lines);
  expect_refused(arguments("r", "0.5"), "prompts.jsonl:2:");
  lines[0]["response"] = {1, 2};
  lines[1].erase("response");
  lines[1]["completion"] = "2";  // which stands for a text alone
  write_prompts(lines);
  expect_refused(arguments("r", "0.5"), "prompts.jsonl:2: the line has no answer under response");
  lines[0] = line_of(0);
  lines[1] = line_of(1);
  lines[1]["response"] = "";
  write_prompts(lines);
  train("empty", "0", {"--num-rollout", "1"});
  EXPECT_EQ(samples("empty", 0).at(1).at("response"), kNoThoughts);
  // Rollouts with given answers are not trained on again from their files, as what a policy sampled.
  expect_refused(
      with_flag(train_arguments(path("read"), {"--load-debug-rollout-data", path("empty/{rollout_id}.jsonl")}),
                "--hf-checkpoint", kStudent),
      "off_policy: the response is an answer of the data and was not sampled");
}

}  // namespace
}  // namespace tandem::cli
