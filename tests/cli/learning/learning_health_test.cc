// Checks runs that cannot learn, end to end: the tiny model with the wrong flag, grader or checkpoint reports that
// within two rollouts of 12 samples, and counts it in metrics.jsonl.
#include <gtest/gtest.h>

#include "tests/cli/captured.h"
#include "tests/cli/resume/spoiled_run.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

// Returns the sum of fault/<key> over all records of a run.
double faults(const std::string& run_directory, const std::string& key) {
  double sum = 0.0;
  for (const base::Json& record : json_lines(run_directory + "/metrics.jsonl")) {
    sum += record.value("fault/" + key, 0.0);
  }
  return sum;
}

int64_t occurrences(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Expects that a run of two rollouts prints `says` once on stderr and in log.txt, and counts `count` in all.
void expect_fault(const Arguments& arguments, const std::string& save, const std::string& key, double count,
                  const std::string& says, int code = 0) {
  const Captured result = run(arguments);
  ASSERT_EQ(result.code, code) << result.err;
  EXPECT_EQ(occurrences(result.err, says), 1) << "expected once: " << says << "\n" << result.err;
  EXPECT_EQ(occurrences(base::read_file(save + "/log.txt"), says), 1);
  EXPECT_EQ(faults(save, key), count) << key;
}

TEST(ZeroSignal, CutCompletionsAndAnswersNeverRight) {
  base::TemporaryDirectory folder;
  // --rm-type math would not do: two tokens of chance are sometimes the answer.
  const std::string reward = write_reward_of(folder.path(), "return [0.0 for c in completions]");
  const Arguments arguments = with_custom_reward(train_arguments(folder / "run"), reward);
  expect_fault(
      with_flag(arguments, "--rollout-max-response-len", "2"), folder / "run", "answer_never_right", 24,
      "rollouts 1 to 2: all 24 rewards are 0, so all advantages are 0 and nothing is learnt: most likely because");
  EXPECT_GE(faults(folder / "run", "completions_truncated"), 20);
  EXPECT_EQ(faults(folder / "run", "advantages_zero"), 24);
  const std::string log = base::read_file(folder / "run/log.txt");
  EXPECT_EQ(occurrences(log, "were cut at 2 tokens, so"), 1) << log;
  EXPECT_NE(log.find("raise --rollout-max-response-len"), std::string::npos) << log;
}

TEST(ZeroSignal, RewardsThatAreAllEqual) {
  base::TemporaryDirectory folder;
  const std::string reward = write_reward_of(folder.path(), "return [0.5 for c in completions]");
  expect_fault(with_custom_reward(train_arguments(folder / "run"), reward), folder / "run", "rewards_equal", 24,
               "all 24 rewards are 0.5, so all advantages are 0 and nothing is learnt: --custom-rm-path");
}

TEST(ZeroSignal, RewardsThatLookAtThePromptAlone) {
  base::TemporaryDirectory folder;
  const std::string reward = write_reward_of(folder.path(), "return [float(len(p[0]['content'])) for p in prompts]");
  expect_fault(with_custom_reward(train_arguments(folder / "run"), reward), folder / "run", "group_rewards_equal", 6,
               "rollouts 1 to 2: rewards differ between prompts but in none of 6 groups");
}

TEST(ZeroSignal, AGraderThatAlwaysFails) {
  base::TemporaryDirectory folder;
  const std::string reward = write_reward_of(folder.path(), "raise ValueError('never')");
  const Arguments arguments = with_custom_reward(train_arguments(folder / "run"), reward);
  expect_fault(arguments, folder / "run", "grader_always_fails", 24, "rollout 1: the grader failed on all 12 samples",
               /*code=*/2);
  // The work so far is saved, and a run that resumes with a reward that works ends well.
  EXPECT_TRUE(base::file_exists(folder / "run/hf/step_000002/model.safetensors"));
  Arguments longer = with_flag(arguments, "--num-rollout", "3");
  longer.insert(longer.end(), {"--load", folder / "run", "--allow-changed-config"});
  write_reward(folder);
  EXPECT_EQ(run(longer).code, 0);
}

// Below --max-failed-rollouts such a run once ended with exit code 0, and a smoke test seemed to pass.
TEST(ZeroSignal, ARunOfOneRolloutWhoseGradingsAllFailedEndsWithTwo) {
  base::TemporaryDirectory folder;
  const std::string reward = write_reward_of(folder.path(), "raise ValueError('never')");
  const Arguments arguments =
      with_flag(with_custom_reward(train_arguments(folder / "run"), reward), "--num-rollout", "1");
  const std::string says =
      "no sample of the run's only rollout was graded, because grading failed for all of them, so nothing was learnt: "
      "mend "
      "the reward";
  const Captured result = run(arguments);
  expect_one_line_failure(result, 2, says + "; the first of the last rollout: sample 0: ValueError: never");
  // A run that resumes with nothing left to do is not better for it.
  Arguments again = arguments;
  again.insert(again.end(), {"--load", folder / "run"});
  expect_one_line_failure(run(again), 2, says);
}

TEST(ZeroSignal, ARewardOfOneForAllIsAWarning) {
  base::TemporaryDirectory folder;
  const std::string reward = write_reward_of(folder.path(), "return [1.0 for c in completions]");
  const Arguments arguments =
      with_flag(with_custom_reward(train_arguments(folder / "run"), reward), "--num-rollout", "1");
  const Captured result = run(arguments);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("warning: rollout 1: all 12 rewards are 1 from the start"), std::string::npos)
      << result.err;
  EXPECT_EQ(result.out.find(" 0 warnings"), std::string::npos) << result.out;
}

TEST(ZeroSignal, ACheckpointWithoutEos) {
  base::TemporaryDirectory folder;
  const std::string model = writable_model(folder / "model");
  replace_text(model + "/config.json", "\"eos_token_id\": 473,", "");
  std::filesystem::remove(model + "/generation_config.json");
  const Arguments arguments = with_custom_reward(train_arguments(folder / "run"), write_reward(folder));
  expect_fault(with_flag(arguments, "--hf-checkpoint", model), folder / "run", "eos_never_sampled", 24,
               "rollout 1: all 12 completions ran into the limit of 12 tokens because nothing can end them");
}

TEST(ZeroSignal, ATemplateWithoutGenerationPrompt) {
  base::TemporaryDirectory folder;
  const Arguments arguments = with_custom_reward(
      train_arguments(folder / "run", {"--apply-chat-template-kwargs", "{\"add_generation_prompt\": false}"}),
      write_reward(folder));
  expect_fault(arguments, folder / "run", "template_opens_no_answer", 24,
               "--apply-chat-template-kwargs turns add_generation_prompt off");
}

TEST(ZeroSignal, ALearningRateOfZero) {
  base::TemporaryDirectory folder;
  const Arguments arguments = with_custom_reward(train_arguments(folder / "run"), write_reward(folder));
  expect_fault(with_flag(arguments, "--lr", "0"), folder / "run", "learning_rate_zero", 4,
               "optimizer step 1: the learning rate is 0, so the weights never change");
  base::write_file_durably(folder / "data.jsonl", "{\"prompt\": \"say\", \"response\": \" yes\"}\n");
  expect_fault({"sft", "--hf-checkpoint", kModel, "--prompt-data", folder / "data.jsonl", "--num-rollout", "2",
                "--global-batch-size", "1", "--lr", "0", "--save", folder / "sft", "--no-use-tensorboard"},
               folder / "sft", "learning_rate_zero", 2, "optimizer step 1: the learning rate is 0");
}

TEST(ZeroSignal, PromptsThatAreAllTooLong) {
  base::TemporaryDirectory folder;
  const Arguments arguments = with_custom_reward(train_arguments(folder / "run"), write_reward(folder));
  const Captured result = run(with_flag(arguments, "--rollout-max-prompt-len", "40"));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(occurrences(result.err, "are longer than --rollout-max-prompt-len and are never trained on"), 1)
      << result.err;
  EXPECT_GT(faults(folder / "run", "prompts_dropped"), 0.0);
}

// With rewards that differ, completions that may end, and a learning rate, the only warning is the length limit that
// the test set.
TEST(ZeroSignal, AHealthyRunIsNotAccused) {
  base::TemporaryDirectory folder;
  const Arguments arguments =
      with_custom_reward(train_arguments(folder / "run", {"--ignore-eos"}), write_reward(folder));
  const Captured result = run(with_flag(arguments, "--num-rollout", "4"));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err.find("warning"), std::string::npos) << result.err;
  for (const base::Json& record : json_lines(folder / "run/metrics.jsonl")) {
    for (const auto& [name, value] : record.items()) {
      if (name.starts_with("fault/")) {
        EXPECT_EQ(value, 0.0) << name;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::cli
