// Checks reward functions through the whole program: what they are given, and what they write into samples and logs.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/files.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

TEST(RewardFunctions, OfSlimeSeeAllFlagsAndWriteIntoSamples) {
  base::TemporaryDirectory folder;
  base::write_file_durably(folder / "reward.py",
                           "async def reward(args, sample):\n"
                           "    assert args.rollout_max_response_len == 12 and args.lr == 1e-3, args\n"
                           "    assert args.colocate is True and args.use_tensorboard is False, args\n"
                           "    assert args.save.endswith('run') and args.rm_type is None, args\n"
                           "    assert args.eval_prompt_data == [] and args.custom_rm_path == '[CANARY_KEY]', args\n"
                           "    if sample.index % 4 == 0: sample.remove_sample = True\n"
                           "    if sample.index % 4 == 1: sample.loss_mask = [0] + [1] * (sample.response_length - 1)\n"
                           "    if sample.index % 4 == 2: sample.status = sample.Status.ABORTED\n"
                           "    if sample.index % 12 == 3: sample.status = sample.Status.FAILED\n"
                           "    return float(sample.index % 4)\n");
  const std::string function = folder / "reward.py:reward";
  ::setenv("CANARY_KEY", function.c_str(), 1);
  Arguments arguments = with_custom_reward(train_arguments(folder / "run"), function);
  arguments.insert(arguments.end(), {"--save-debug-rollout-data", folder / "{rollout_id}.jsonl"});
  const Captured result = run(arguments);
  ::unsetenv("CANARY_KEY");
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* rollout : {"0", "1"}) {
    const std::vector<base::Json> samples = json_lines(folder / (rollout + std::string(".jsonl")));
    ASSERT_EQ(samples.size(), 12U);
    for (size_t i = 0; i < samples.size(); ++i) {
      const base::Json& sample = samples[i];
      const bool failed = i == 3;
      EXPECT_EQ(sample.contains("failure"), failed) << sample;
      EXPECT_EQ(sample["remove_sample"] == true, i % 4 == 0) << sample;
      EXPECT_EQ(sample["loss_mask"][0] == 0, i % 4 == 1) << sample;
      EXPECT_EQ(sample["status"] == "aborted", i % 4 == 2) << sample;
    }
  }
  int64_t num_rollouts = 0;
  for (const base::Json& record : json_lines(folder / "run/metrics.jsonl")) {
    if (!record.contains("rollout/step")) continue;
    ++num_rollouts;
    EXPECT_EQ(record.value("rollout/removed", 0.0), 3.0) << record;
    EXPECT_EQ(record.value("rollout/aborted", 0.0), 3.0) << record;
    EXPECT_EQ(record.value("rollout/grader_failed/status", 0.0), 1.0) << record;
  }
  EXPECT_EQ(num_rollouts, 2);
}

TEST(RewardFunctions, OfTrlHaveWholeGroupsAndTheirLogsAreKept) {
  base::TemporaryDirectory folder;
  base::write_file_durably(folder / "reward.py",
                           "def reward(completions, label, log_metric, log_extra, **kwargs):\n"
                           "    log_metric('num_samples', len(completions))\n"
                           "    log_extra('expected', label)\n"
                           "    return [float(i) for i in range(len(completions))]\n");
  Arguments arguments = with_custom_reward(train_arguments(folder / "run"), folder / "reward.py:reward");
  arguments.insert(arguments.end(), {"--eval-prompt-data", "small", kPrompts + "@[0:2]", "--eval-interval", "1",
                                     "--n-samples-per-eval-prompt", "2"});
  const Captured result = run(arguments);
  ASSERT_EQ(result.code, 0) << result.err;
  double group_size = 0.0, eval_group_size = 0.0;
  for (const base::Json& record : json_lines(folder / "run/metrics.jsonl")) {
    group_size = record.value("rollout/reward_metric/num_samples", group_size);
    eval_group_size = record.value("eval/small/reward_metric/num_samples", eval_group_size);
  }
  EXPECT_EQ(group_size, 4.0);
  EXPECT_EQ(eval_group_size, 2.0);
  for (const base::Json& sample : json_lines(folder / "run/samples/rollout_000001.jsonl")) {
    EXPECT_EQ(sample["extra"]["expected"], sample["label"]) << sample;
    EXPECT_EQ(sample["reward"], static_cast<double>(sample["sample_id"].get<int>() % 4)) << sample;
  }
}

// A rollout has two optimizer steps; the run goes on after the first.
TEST(RewardFunctions, OfTrlAreToldHowFarTheRunIs) {
  base::TemporaryDirectory folder;
  base::write_file_durably(folder / "reward.py",
                           "def reward(completions, trainer_state, log_metric, **kwargs):\n"
                           "    if trainer_state is None:\n"
                           "        return [0.5] * len(completions)\n"
                           "    log_metric('epoch', trainer_state.epoch)\n"
                           "    log_metric('max_steps', trainer_state.max_steps)\n"
                           "    return [float(trainer_state.global_step)] * len(completions)\n");
  Arguments words = with_custom_reward(
      train_arguments(folder / "run", {"--eval-prompt-data", "small", kPrompts + "@[0:2]", "--eval-interval", "1"}),
      folder / "reward.py:reward");
  const Captured first = run(with_flag(words, "--num-rollout", "1"));
  ASSERT_EQ(first.code, 0) << first.err;
  words.insert(words.end(), {"--load", folder / "run"});
  const Captured rest = run(with_flag(words, "--num-rollout", "3"));
  ASSERT_EQ(rest.code, 0) << rest.err;
  std::vector<double> rewards, epochs, max_steps, evaluations;
  for (const base::Json& record : json_lines(folder / "run/metrics.jsonl")) {
    if (record.contains("eval/small")) evaluations.push_back(record["eval/small"]);
    if (!record.contains("rollout/raw_reward")) continue;
    rewards.push_back(record["rollout/raw_reward"]);
    epochs.push_back(record["rollout/reward_metric/epoch"]);
    max_steps.push_back(record["rollout/reward_metric/max_steps"]);
  }
  EXPECT_EQ(rewards, (std::vector<double>{0.0, 2.0, 4.0}));
  EXPECT_EQ(max_steps, (std::vector<double>{2.0, 6.0, 6.0}));
  ASSERT_GE(evaluations.size(), 3U);
  EXPECT_EQ(evaluations, std::vector<double>(evaluations.size(), 0.5)) << "they are told nothing";
  ASSERT_EQ(epochs.size(), 3U);
  EXPECT_EQ(epochs[0], 0.0);
  EXPECT_DOUBLE_EQ(epochs[2], 2 * epochs[1]);
}

TEST(RewardFunctions, OfVerlHaveTheGroundTruthOfPublishedRows) {
  base::TemporaryDirectory folder;
  base::write_file_durably(
      folder / "reward.py",
      "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
      "    return float((data_source, ground_truth, extra_info['index'], extra_info['truncated']) ==\n"
      "                 ('openai/gsm8k', '72', 7, True))\n");
  base::write_file_durably(folder / "data.jsonl",
                           R"({"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "1+1"}], )"
                           R"("reward_model": {"style": "rule", "ground_truth": "72"}, "extra_info": {"index": 7}})"
                           "\n");
  const Arguments arguments = {"eval",
                               "--hf-checkpoint",
                               kModel,
                               "--eval-prompt-data",
                               "a",
                               folder / "data.jsonl",
                               "--rollout-max-response-len",
                               "2",
                               "--ignore-eos",
                               "--custom-rm-path",
                               folder / "reward.py:compute_score",
                               "--output",
                               folder / "eval.json"};
  const Captured result = run(arguments);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json_lines(folder / "eval.json").at(0)["eval/a"], 1.0);
  Arguments other = arguments;
  other.insert(other.end(), {"--rm-python", folder / "nowhere"});
  expect_one_line_failure(run(other), 2, "--rm-python " + folder / "nowhere" + ": No such file or directory");
}

// A user who writes `labels` for `label` is told before anything is loaded, and not by each call.
TEST(RewardFunctions, OfTrlNeedColumnsThatTheDataHave) {
  base::TemporaryDirectory folder;
  const std::string path = folder / "reward.py";
  base::write_file_durably(path,
                           "def of_labels(completions, labels, **kw): return [0.0] * len(completions)\n"
                           "def of_label(completions, label, **kw): return [0.0] * len(completions)\n"
                           "async def of_group(args, samples): return [0.0] * len(samples)\n");
  const auto training = [&](const std::string& function) {
    return with_custom_reward(train_arguments(folder / "run", {"--dry-run"}), path + ":" + function);
  };
  const Captured refused = run(training("of_labels"));
  expect_one_line_failure(refused, 2, "of_labels: there is no column labels in " + kPrompts);
  EXPECT_NE(refused.err.find("; there are prompts, completions, completion_ids, label"), std::string::npos);
  EXPECT_NE(refused.err.find("did you mean label?"), std::string::npos) << refused.err;
  EXPECT_EQ(run(training("of_label")).code, 0);
  expect_one_line_failure(run(training("of_group")), 2, "takes all samples of a group; add --group-rm");
  const Arguments evaluation = {"eval", "--hf-checkpoint", kModel,      "--eval-prompt-data",
                                "a",    kPrompts,          "--rm-type", "exact"};
  expect_one_line_failure(run(with_custom_reward(evaluation, path + ":of_labels")), 2, "there is no column labels");
}

TEST(RewardFunctions, SeeTheVariablesThatTheyAreGiven) {
  base::TemporaryDirectory folder;
  base::write_file_durably(
      folder / "reward.py",
      "import os\n"
      "def reward(completions, **kw): return [float(os.environ['FACTOR_OF_A_TEST'])] * len(completions)\n");
  Arguments arguments = {"eval",
                         "--hf-checkpoint",
                         kModel,
                         "--rm-type",
                         "exact",
                         "--eval-prompt-data",
                         "a",
                         kPrompts + "@[0:2]",
                         "--rollout-max-response-len",
                         "2",
                         "--output",
                         folder / "eval.json"};
  arguments = with_custom_reward(arguments, folder / "reward.py:reward");
  ::setenv("FACTOR_OF_A_TEST", "0.5", 1);
  expect_one_line_failure(run(arguments), 2, "--rm-env FACTOR_OF_A_TEST lets this one through");
  arguments.insert(arguments.end(), {"--rm-env", "FACTOR_OF_A_TEST"});
  const Captured result = run(arguments);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json_lines(folder / "eval.json").at(0)["eval/a"], 0.5);
  ::unsetenv("FACTOR_OF_A_TEST");
  expect_one_line_failure(run(arguments), 2, "--rm-env FACTOR_OF_A_TEST: is not set in the environment");
}

}  // namespace
}  // namespace tandem::cli
