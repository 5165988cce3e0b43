// Checks evaluations of several data sets, each with options of its own, and the weights that did best in them.
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>

#include "base/files.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

std::string write_eval_config(const base::TemporaryDirectory& folder) {
  base::write_file_durably(folder / "length.py",
                           "async def length(args, sample): return {'score': 1.0, 'tokens': sample.response_length}\n");
  base::write_file_durably(folder / "eval.toml",
                           "[eval.defaults]\n"
                           "max_response_len = 4\n"
                           "[[eval.datasets]]\n"
                           "name = \"math\"\n"
                           "path = \"" +
                               kPrompts +
                               "@[0:3]\"\n"
                               "rm_type = \"math\"\n"
                               "n_samples_per_eval_prompt = 2\n"
                               "temperature = 0.5\n"
                               "[[eval.datasets]]\n"
                               "name = \"length\"\n"
                               "path = \"" +
                               kPrompts +
                               "@[3:5]\"\n"
                               "custom_rm_path = \"" +
                               (folder / "length.py:length") +
                               "\"\n"
                               "reward_key = \"tokens\"\n"
                               "max_response_len = 7\n");
  return folder / "eval.toml";
}

TEST(EvalConfig, EachDataSetHasItsOwnOptions) {
  const base::TemporaryDirectory folder;
  const std::string file = write_eval_config(folder);
  Arguments arguments = with_custom_reward(train_arguments(folder / "run"), write_reward(folder));
  arguments.insert(arguments.end(), {"--eval-config", file, "--eval-interval", "1"});
  const Captured result = run(arguments);
  ASSERT_EQ(result.code, 0) << result.err;
  const auto math = json_lines(folder / "run/samples/eval_math_000001.jsonl");
  const auto length = json_lines(folder / "run/samples/eval_length_000001.jsonl");
  ASSERT_EQ(math.size(), 6U);
  ASSERT_EQ(length.size(), 2U);
  std::optional<double> reward, tokens;
  for (const base::Json& record : json_lines(folder / "run/metrics.jsonl")) {
    if (!record.contains("eval/step") || record["eval/step"] != 1) continue;
    if (record.contains("eval/length")) {
      reward = record["eval/length"].get<double>();
      tokens = record["eval/length/response_len/mean"].get<double>();
      EXPECT_LE(record["eval/length/response_len/max"], 7.0);
    } else {
      EXPECT_LE(record["eval/math/response_len/max"], 4.0);
      EXPECT_TRUE(record.contains("eval/math-pass@2"));
    }
  }
  EXPECT_TRUE(reward.has_value() && reward == tokens) << "the set's own function gave its own number";

  // `tandem eval` gives the same for a checkpoint, without a reward for all sets.
  const Captured eval = run({"eval", "--hf-checkpoint", folder / "run/hf/step_000002", "--eval-config", file,
                             "--output", folder / "eval.json"});
  ASSERT_EQ(eval.code, 0) << eval.err;
  base::Json last;
  for (const base::Json& record : json_lines(folder / "run/metrics.jsonl")) {
    if (record.contains("eval/length")) last = record;
  }
  EXPECT_EQ(json_lines(folder / "eval.json").at(0)["eval/length"], last["eval/length"]);
}

// A data set adds up with these keys what training adds up with --rm-type, --custom-rm-path and --reward-weights.
TEST(EvalConfig, SeveralRewardsOfADataSetAreAddedUpAsInTraining) {
  base::TemporaryDirectory folder;
  const std::string path = kPrompts + "@[0:2]", function = folder / "short.py:short";
  base::write_file_durably(folder / "short.py",
                           "def short(completion_ids, **kwargs):\n"
                           "    return [float(ids[0] % 7) for ids in completion_ids]\n");
  const auto table = [&](const std::string& name) {
    return "[[eval.datasets]]\nname = \"" + name + "\"\npath = \"" + path + "\"\n";
  };
  base::write_file_durably(folder / "eval.toml", table("training") + table("own") + "rm_type = \"f1\"\n" +
                                                     "custom_rm_path = \"" + function +
                                                     "\"\nreward_weights = [0.5, 2]\n" + table("alone") +
                                                     "custom_rm_path = \"" + function + "\"\n");
  const Arguments arguments = {"eval",
                               "--hf-checkpoint",
                               kModel,
                               "--eval-config",
                               folder / "eval.toml",
                               "--rollout-max-response-len",
                               "4",
                               "--rollout-temperature",
                               "0",
                               "--output",
                               folder / "eval.json",
                               "--rm-num-workers",
                               "1",
                               "--rm-type",
                               "f1",
                               "--custom-rm-path",
                               function,
                               "--reward-weights",
                               "0.5",
                               "2"};
  const Captured result = run(arguments);
  ASSERT_EQ(result.code, 0) << result.err;
  const base::Json record = json_lines(folder / "eval.json").at(0);
  EXPECT_NE(record.at("eval/own"), record.at("eval/alone"));
  for (const char* number : {"", "/rewards/f1/mean", "/rewards/short/mean"})
    EXPECT_EQ(record.at(std::string("eval/own") + number), record.at(std::string("eval/training") + number)) << number;
  EXPECT_FALSE(record.contains("eval/alone/rewards/short/mean")) << "one reward is no sum";
  base::write_file_durably(folder / "eval.toml", table("own") + "rm_type = \"f1\"\ncustom_rm_path = \"" + function +
                                                     "\"\nreward_weights = [0.5]\n");
  expect_one_line_failure(run(arguments), 2,
                          "eval.toml:1:1: --reward-weights: 1 weight given for 2 rewards (f1, short)");
}

TEST(EvalConfig, MistakesAreRefusedBeforeTheRunExists) {
  const base::TemporaryDirectory folder;
  const std::string file = write_eval_config(folder);
  const Arguments base = train_arguments(folder / "run");
  const auto refused = [&](const Arguments& more, const std::string& says) {
    Arguments arguments = base;
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_one_line_failure(run(arguments), 2, says);
    EXPECT_FALSE(base::directory_exists(folder / "run"));
  };
  refused({"--eval-config", file}, "--eval-config: needs --eval-interval");
  refused({"--eval-config", file, "--eval-prompt-data", "a", kPrompts, "--eval-interval", "1"},
          "--eval-prompt-data and --eval-config are both given");
  refused({"--eval-config", folder / "none.toml", "--eval-interval", "1"}, "none.toml");
  base::write_file_durably(folder / "bad.toml", "[[eval.datasets]]\nname = \"a\"\npath = \"x\"\ntop_q = 1\n");
  refused({"--eval-config", folder / "bad.toml", "--eval-interval", "1"}, "bad.toml:4:9: top_q: is no key");
  base::write_file_durably(folder / "gone.toml",
                           "[[eval.datasets]]\nname = \"a\"\npath = \"x\"\n"
                           "custom_rm_path = \"gone.py:f\"\n");
  refused({"--eval-config", folder / "gone.toml", "--eval-interval", "1"}, "x");
  expect_one_line_failure(run({"eval", "--hf-checkpoint", kModel}), 2, "--eval-prompt-data: give NAME");
}

Arguments with_best(const std::string& save, const std::string& reward, const Arguments& more = {}) {
  Arguments arguments = with_flag(with_custom_reward(train_arguments(save), reward), "--num-rollout", "3");
  arguments.insert(arguments.end(),
                   {"--eval-prompt-data", "small", kPrompts + "@[0:4]", "--eval-interval", "1",
                    "--n-samples-per-eval-prompt", "4", "--save-best", "eval/small", "--save-interval", "1"});
  arguments = with_flag(arguments, "--lr", "3e-2");
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Returns the step of the best evaluation after the first rollout that beats all before, by the records.
int64_t best_step(const std::string& run) {
  std::optional<double> best;
  int64_t step = 0;
  for (const base::Json& record : json_lines(run + "/metrics.jsonl")) {
    if (!record.contains("eval/small")) continue;
    const double value = record["eval/small"].get<double>();
    if (best && value <= *best) continue;
    best = value;
    step = record["eval/step"].get<int64_t>();
  }
  return step;
}

int num_bests(const std::string& run) {
  int count = 0;
  for (const std::string& entry : base::list_directory(run + "/hf")) count += entry.starts_with("best_") ? 1 : 0;
  return count;
}

TEST(SaveBest, KeepsTheWeightsOfTheBestEvaluationOfAResumedRunToo) {
  const base::TemporaryDirectory folder;
  const std::string reward = write_reward(folder), whole = folder / "whole";
  const Captured result = run(with_best(whole, reward));
  ASSERT_EQ(result.code, 0) << result.err;
  const int64_t step = best_step(whole);
  ASSERT_GT(step, 0) << "the run is to learn something";
  EXPECT_EQ(std::filesystem::read_symlink(whole + "/hf/best"), "best_00000" + std::to_string(step));
  EXPECT_EQ(base::read_file(whole + "/hf/best/model.safetensors"),
            base::read_file(whole + "/hf/step_00000" + std::to_string(step) + "/model.safetensors"));
  EXPECT_TRUE(base::file_exists(whole + "/hf/best/tokenizer.json"));
  EXPECT_EQ(num_bests(whole), 1) << "earlier ones are removed";
  EXPECT_NE(result.out.find("best eval/small so far: "), std::string::npos) << result.out;

  // Everything after the checkpoint is taken back, also its best weights.
  const std::string parts = folder / "parts";
  ASSERT_EQ(run(with_flag(with_best(parts, reward), "--num-rollout", "1")).code, 0);
  std::filesystem::copy(parts + "/hf/step_000001", parts + "/hf/best_000009");
  std::filesystem::remove(parts + "/hf/best");
  std::filesystem::create_symlink("best_000009", parts + "/hf/best");
  ASSERT_EQ(run(with_best(parts, reward, {"--load", parts})).code, 0);
  EXPECT_EQ(std::filesystem::read_symlink(whole + "/hf/best"), std::filesystem::read_symlink(parts + "/hf/best"));
  EXPECT_EQ(base::read_file(whole + "/hf/best/model.safetensors"),
            base::read_file(parts + "/hf/best/model.safetensors"));
  EXPECT_EQ(timeless_metrics(whole), timeless_metrics(parts));
  EXPECT_EQ(num_bests(parts), 1);
}

// The reward is 1 x reward + 1 x half, a sum that is never 1. pass@k once followed the sum, and no weights were ever
// the best.
TEST(SaveBest, OfPassAtKOfASumFollowsOneRewardAndKnowsWhichItWas) {
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "sum.py",
                           "def right(completions, **kwargs):\n"
                           "    return [float(len(c[0]['content']) % 5 > 2) for c in completions]\n"
                           "def half(completions, **kwargs): return [0.5] * len(completions)\n");
  Arguments arguments =
      with_flag(with_best(folder / "run", folder / "sum.py:right"), "--save-best", "eval/small-pass@1");
  arguments.insert(std::find(arguments.begin(), arguments.end(), folder / "sum.py:right") + 1, folder / "sum.py:half");
  const Captured result = run(with_flag(arguments, "--num-rollout", "2"));
  ASSERT_EQ(result.code, 0) << result.err;
  double best = 0.0;
  for (const base::Json& record : json_lines(folder / "run/metrics.jsonl")) {
    if (!record.contains("eval/small")) continue;
    EXPECT_EQ(record["eval/small-pass@1"], record["eval/small/rewards/right/mean"]);
    best = std::max(best, record["eval/small-pass@1"].get<double>());
  }
  EXPECT_GT(best, 0.0);
  arguments.insert(arguments.end(), {"--load", folder / "run", "--pass-reward", "half", "--pass-threshold", "0.5"});
  const Captured resumed = run(arguments);
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("--save-best eval/small-pass@1: samples passed by right >= 1 when the checkpoint was made "
                             "and pass by half >= 0.5 now"),
            std::string::npos)
      << resumed.err;
}

// A function that gives less than the threshold was once silent: pass@1 was 0 and no weights were kept.
TEST(SaveBest, OfPassAtKThatNothingReachesIsSaidOnce) {
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "half.py",
                           "def half(completions, **kwargs):\n"
                           "    return [0.5 * (len(c[0]['content']) % 2) for c in completions]\n");
  const Arguments arguments =
      with_flag(with_best(folder / "run", folder / "half.py:half"), "--save-best", "eval/small-pass@1");
  const Captured result = run(with_flag(arguments, "--num-rollout", "2"));
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string says =
      "--save-best eval/small-pass@1: no sample has passed by half >= 1, and the highest value of half is 0.5; if it "
      "never gives more, lower --pass-threshold";
  const size_t at = result.err.find(says);
  ASSERT_NE(at, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find(says, at + 1), std::string::npos) << result.err;
}

TEST(SaveBest, AMetricThatThereIsNotIsRefused) {
  const base::TemporaryDirectory folder;
  Arguments arguments = with_best(folder / "run", write_reward(folder));
  expect_one_line_failure(run(with_flag(arguments, "--save-best", "eval/large")), 2,
                          "--save-best eval/large: no such metric of the evaluations; give one of eval/small, "
                          "eval/small-pass@1, eval/small-pass@2, eval/small-pass@4");
  arguments = train_arguments(folder / "run", {"--eval-prompt-data", "small", kPrompts, "--eval-interval", "1",
                                               "--save-best", "eval/small-pass@1", "--pass-threshold", "2"});
  expect_one_line_failure(run(arguments), 2, "--pass-threshold 2: exact is 1 at most, so no sample could ever pass");
  base::write_file_durably(folder / "eval.toml", "[[eval.datasets]]\nname = \"own\"\npath = \"" + kPrompts +
                                                     "\"\nrm_type = \"math\"\npass_threshold = 2\n");
  arguments =
      with_custom_reward(train_arguments(folder / "run", {"--eval-config", folder / "eval.toml", "--eval-interval", "1",
                                                          "--save-best", "eval/own-pass@1", "--pass-threshold", "2"}),
                         write_reward(folder));
  expect_one_line_failure(run(arguments), 2, "eval.toml:1:1: --pass-threshold 2: math is 1 at most");
  Arguments without = train_arguments(folder / "run", {"--save-best", "eval/small"});
  expect_one_line_failure(run(without), 2, "--save-best: needs evaluations");
  EXPECT_FALSE(base::directory_exists(folder / "run"));
}

}  // namespace
}  // namespace tandem::cli
