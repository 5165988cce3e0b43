// Checks gradings that fail, through the program: what their samples get, what an evaluation reports, and when a run
// ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/resume/spoiled_run.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

// Writes a reward that raises for a third of the answers, or gives no number for another reason; else 1, 0 or -0.5 by
// length.
std::string write_flaky_reward(const base::TemporaryDirectory& folder) {
  base::write_file_durably(folder / "reward.py",
                           "def reward(data_source, solution_str, ground_truth, extra_info=None):\n"
                           "    length = len(solution_str)\n"
                           "    if length % 4 == 0:\n"
                           "        raise ValueError('a length of fours')\n"
                           "    if length % 4 == 1:\n"
                           "        return float('nan') if length % 8 == 1 else -0.5\n"
                           "    return float(length % 4 == 2)\n");
  return folder / "reward.py:reward";
}

struct Graded {
  std::vector<base::Json> failed, others;
};

Graded split(const std::vector<base::Json>& samples) {
  Graded graded;
  for (const base::Json& sample : samples)
    (sample.contains("failure") ? graded.failed : graded.others).push_back(sample);
  return graded;
}

base::Json first_record(const std::string& run, const std::string& key) {
  for (const base::Json& record : json_lines(run + "/metrics.jsonl")) {
    if (record.contains(key)) return record;
  }
  ADD_FAILURE() << run << " has no record with " << key;
  return {};
}

double mean_reward(const std::vector<base::Json>& samples) {
  double sum = 0.0;
  int64_t count = 0;
  for (const base::Json& sample : samples) {
    if (sample["reward"].is_null()) continue;
    sum += sample["reward"].get<double>();
    ++count;
  }
  return sum / static_cast<double>(count);
}

// A policy that is paid more for breaking its grader than for being wrong learns to break it: a failed sample used to
// be left out of its group, which was worth 0.73 standard deviations more than a wrong answer.
TEST(FailedGradings, AreGivenWhatWasAsked) {
  const base::TemporaryDirectory folder;
  const std::string reward = write_flaky_reward(folder);
  for (const std::string policy : {"lowest", "drop", "-2"}) {
    SCOPED_TRACE(policy);
    const std::string path = folder / policy;
    Arguments arguments = with_custom_reward(train_arguments(path), reward);
    arguments = with_flag(with_flag(arguments, "--num-rollout", "1"), "--n-samples-per-prompt", "8");
    if (policy != "lowest") arguments = with_flag(arguments, "--rm-failure-reward", policy);
    const Captured result = run(arguments);
    ASSERT_EQ(result.code, 0) << result.err;
    const std::vector<base::Json> samples = json_lines(path + "/samples/rollout_000000.jsonl");
    const Graded graded = split(samples);
    ASSERT_GE(graded.failed.size(), 4U);
    ASSERT_GE(graded.others.size(), 4U);
    int64_t num_truncated = 0;
    std::map<base::Json, double>
        lowest_of_group;  // lowest reward of a group, since a function may give anything; never above 0
    double lowest = 0.0;
    for (const base::Json& sample : samples) num_truncated += sample["status"] == "truncated" ? 1 : 0;
    for (const base::Json& sample : graded.others) {
      double& of_group = lowest_of_group[sample["group_id"]];
      of_group = std::min(of_group, sample["reward"].get<double>());
      lowest = std::min(lowest, of_group);
    }
    ASSERT_EQ(lowest, -0.5);
    std::map<std::string, double> classes;
    for (const base::Json& sample : graded.failed) {
      classes["rollout/grader_failed/" + sample["failure_class"].get<std::string>()] += 1.0;
      EXPECT_NE(sample["status"], "failed");
      if (policy == "drop") {
        EXPECT_TRUE(sample["reward"].is_null());
        EXPECT_EQ(sample["advantage"], 0.0);
      } else {
        const bool is_alone = !lowest_of_group.contains(sample["group_id"]);  // true if its whole group failed
        const double expected = is_alone ? lowest : lowest_of_group[sample["group_id"]];
        EXPECT_EQ(sample["reward"], policy == "lowest" ? expected : -2.0);
        EXPECT_LE(sample["advantage"].get<double>(), 0.0);
      }
    }
    EXPECT_EQ(classes.size(), 2U);  // the classes are exception and not_finite
    const base::Json record = first_record(path, "rollout/step");
    for (const auto& [name, count] : classes) EXPECT_EQ(record.value(name, 0.0), count) << name;
    const auto num_failed = static_cast<double>(graded.failed.size());
    EXPECT_EQ(record["rollout/grader_failed"], num_failed);
    EXPECT_EQ(record["rollout/failed"], num_failed);
    EXPECT_EQ(record.value("rollout/dropped", 0.0), policy == "drop" ? num_failed : 0.0);
    EXPECT_EQ(record.value("rollout/removed", 0.0), policy == "drop" ? num_failed : 0.0);
    EXPECT_NEAR(record["rollout/raw_reward"].get<double>(), mean_reward(samples), 1e-12);
    EXPECT_NEAR(record["rollout/truncated_ratio"].get<double>(),
                static_cast<double>(num_truncated) / static_cast<double>(samples.size()), 1e-12);
    EXPECT_GT(num_truncated, static_cast<int64_t>(graded.others.size())) << "those that failed count";
    const std::string failed = "  failed " + std::to_string(graded.failed.size());
    EXPECT_NE(result.out.find(policy == "drop" ? failed + " (" : failed), std::string::npos) << result.out;
    EXPECT_NE(result.err.find(policy == "drop" ? "have none and are left out" : "(--rm-failure-reward)"),
              std::string::npos)
        << result.err;
  }
  for (const std::string policy : {"inf", "low", "1e999", ""}) {
    expect_one_line_failure(
        run(with_flag(train_arguments(folder / "refused", {"--dry-run"}), "--rm-failure-reward", policy)), 2,
        "give lowest, drop or a finite number such as -1");
  }
}

// The reward once averaged the samples that had one, while pass@1 counted all: 0.0137 against 0.0063, in the direction
// that flatters.
TEST(FailedGradings, OneDenominatorInAnEvaluation) {
  const base::TemporaryDirectory folder;
  const std::string reward = write_flaky_reward(folder);
  for (const std::string policy : {"lowest", "drop"}) {
    SCOPED_TRACE(policy);
    const Captured result =
        run({"eval", "--hf-checkpoint", kModel, "--eval-prompt-data", "set", kPrompts + "@[0:4]",
             "--n-samples-per-eval-prompt", "16", "--rollout-max-response-len", "6", "--custom-rm-path", reward,
             "--rm-failure-reward", policy, "--output", folder / "eval.json", "--sample-output", folder / "s.jsonl"});
    ASSERT_EQ(result.code, 0) << result.err;
    const std::vector<base::Json> samples = json_lines(folder / "s.jsonl");
    const Graded graded = split(samples);
    ASSERT_EQ(samples.size(), 64U);
    ASSERT_GE(graded.failed.size(), 4U);
    const base::Json metrics = json_lines(folder / "eval.json").at(0);
    const std::string first = "the first: sample " + base::dump_json(graded.failed.front()["sample_id"]) + ": ";
    EXPECT_NE(result.err.find(first), std::string::npos) << result.err << first;
    EXPECT_NE(result.err.find(" of eval set failed ("), std::string::npos) << result.err;
    EXPECT_EQ(result.err.find("sample 4503599627370"), std::string::npos) << "the id that its random numbers have";
    double num_scored = 0.0, num_passed = 0.0, num_truncated = 0.0, num_tokens = 0.0;
    for (size_t i = 0; i < samples.size(); ++i) {
      const base::Json& sample = samples[i];
      EXPECT_EQ(sample["sample_id"], i) << "from 0, with the set's name";
      EXPECT_EQ(sample["group_id"], i / 16);
      EXPECT_EQ(sample["data_set"], "set");
      if (sample["reward"].is_null()) continue;
      num_scored += 1.0;
      num_passed += sample["reward"] == 1.0 ? 1.0 : 0.0;
      num_truncated += sample["status"] == "truncated" ? 1.0 : 0.0;
      num_tokens += sample["response_length"].get<double>();
    }
    const auto num_failed = static_cast<double>(graded.failed.size());
    EXPECT_EQ(num_scored, policy == "drop" ? 64.0 - num_failed : 64.0);
    EXPECT_NEAR(metrics["eval/set"].get<double>(), mean_reward(samples), 1e-12);
    EXPECT_NEAR(metrics["eval/set-pass@1"].get<double>(), num_passed / num_scored, 1e-12);
    EXPECT_NEAR(metrics["eval/set-truncated_ratio"].get<double>(), num_truncated / num_scored, 1e-12);
    EXPECT_NEAR(metrics["eval/set/response_len/mean"].get<double>(), num_tokens / num_scored, 1e-12);
    EXPECT_EQ(metrics["eval/set/grader_failed"], num_failed);
    EXPECT_GT(metrics["eval/set/grader_failed/exception"], 0.0);
    EXPECT_EQ(metrics.value("eval/set/dropped", 0.0), policy == "drop" ? num_failed : 0.0);
    const std::string failed = std::to_string(graded.failed.size()) + " failed in grading";
    const std::string counts = policy == "drop" ? " of 64 samples, " + failed + ", " +
                                                      std::to_string(graded.failed.size()) + " of them left out)"
                                                : "(64 samples, " + failed + ")";
    EXPECT_NE(result.out.find(counts), std::string::npos) << result.out;
    if (policy == "drop") continue;
    size_t at = 0;
    for (const char* name : {"pass@1 ", "pass@2 ", "pass@4 ", "pass@8 ", "pass@16 "}) {
      at = result.out.find(name, at);
      ASSERT_NE(at, std::string::npos) << name << " is not in its place: " << result.out;
    }
  }
}

TEST(FailedGradings, NothingScoredIsNoNumber) {
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "reward.py",
                           "def reward(data_source, solution_str, ground_truth, extra_info):\n"
                           "    if extra_info.get('breaks'):\n"
                           "        raise KeyError('gold')\n"
                           "    return float(len(solution_str) % 3)\n");
  base::write_file_durably(folder / "broken.jsonl",
                           "{\"prompt\": \"say\", \"breaks\": 1}\n{\"prompt\": \"do\", \"breaks\": 1}\n");
  const std::string reward = folder / "reward.py:reward";
  const Captured result =
      run({"eval", "--hf-checkpoint", kModel, "--eval-prompt-data", "broken", folder / "broken.jsonl", "good",
           kPrompts + "@[0:2]", "--rollout-max-response-len", "4", "--custom-rm-path", reward, "--output",
           folder / "eval.json", "--sample-output", folder / "s.jsonl"});
  expect_one_line_failure(result, 2,
                          "eval broken: grading failed for all 2 samples, so there is no number; the first: ");
  EXPECT_NE(last_line(result.err).find("KeyError: 'gold' (reward.py:3)"), std::string::npos) << result.err;
  EXPECT_EQ(result.out.find("eval broken"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("eval good: reward "), std::string::npos) << "the others have theirs: " << result.out;
  const base::Json metrics = json_lines(folder / "eval.json").at(0);
  EXPECT_FALSE(metrics.contains("eval/broken"));
  EXPECT_FALSE(metrics.contains("eval/broken-pass@1"));
  EXPECT_EQ(metrics["eval/broken/grader_failed"], 2.0);
  EXPECT_TRUE(metrics.contains("eval/good"));
  EXPECT_EQ(json_lines(folder / "s.jsonl").size(), 4U);

  const Arguments evaluated = {"--eval-prompt-data", "broken", folder / "broken.jsonl", "--eval-interval", "1"};
  const Captured training =
      run(with_flag(with_custom_reward(train_arguments(folder / "run", evaluated), reward), "--num-rollout", "1"));
  EXPECT_EQ(training.code, 0) << training.err;
  EXPECT_NE(training.err.find("eval broken: grading failed for all 2 samples, so there is no number"),
            std::string::npos)
      << training.err;
  const base::Json record = first_record(folder / "run", "eval/step");
  EXPECT_FALSE(record.contains("eval/broken"));
  EXPECT_EQ(record["eval/broken/grader_failed"], 2.0);
}

// None of a TRL function says that the reward does not apply, which is nobody's fault, and yet each rollout warned of
// failed gradings.
TEST(FailedGradings, ARewardThatDoesNotApplyIsNone) {
  const base::TemporaryDirectory folder;
  const std::string rewards = write_reward_of(
      folder.path(), "return [None if i % 2 else float(len(c[0]['content'])) for i, c in enumerate(completions)]");
  const std::string path = folder / "run";
  const Captured training = run(with_custom_reward(train_arguments(path), rewards));
  ASSERT_EQ(training.code, 0) << training.err;
  EXPECT_EQ(training.err.find("failed"), std::string::npos) << training.err;
  EXPECT_EQ(training.out.find("failed"), std::string::npos) << training.out;
  EXPECT_NE(training.out.find("  6 without a reward  "), std::string::npos) << training.out;
  const base::Json record = first_record(path, "rollout/step");
  for (const char* name : {"rollout/grader_failed", "rollout/grader_failed/none", "rollout/failed", "rollout/dropped"})
    EXPECT_EQ(record[name], 6.0) << name;

  const Arguments evaluation = {"eval",
                                "--hf-checkpoint",
                                kModel,
                                "--eval-prompt-data",
                                "set",
                                kPrompts + "@[0:2]",
                                "--n-samples-per-eval-prompt",
                                "4",
                                "--rollout-max-response-len",
                                "6",
                                "--custom-rm-path",
                                rewards};
  const Captured evaluated = run(evaluation);
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_EQ(evaluated.err.find("failed"), std::string::npos) << evaluated.err;
  EXPECT_NE(evaluated.out.find("(4 of 8 samples, 4 without a reward)"), std::string::npos) << evaluated.out;

  const std::string nothing = write_reward_of(folder.path(), "return [None for c in completions]");
  expect_one_line_failure(run(with_flag(evaluation, "--custom-rm-path", nothing)), 2,
                          "eval set: the reward applies to none of 8 samples (it gave None), so there is no number");
}

// A typo in the reward once let the run finish with exit code 0 and reward 0.
TEST(FailedGradings, TooManyRolloutsOfThemEndTheRun) {
  const base::TemporaryDirectory folder;
  const std::string reward = write_reward_of(folder.path(), "raise ValueError('never')");
  const std::string path = folder / "run";
  const Arguments arguments = with_custom_reward(train_arguments(path), reward);
  const Captured two = run(arguments);
  ASSERT_EQ(two.code, 2) << two.err;  // rollouts fewer than --max-failed-rollouts, and all that the run had
  EXPECT_FALSE(first_record(path, "rollout/step").contains("rollout/raw_reward")) << "no reward, no number";
  // The count is part of the checkpoint.
  const Captured result = run(with_flag(with_flag(arguments, "--num-rollout", "9"), "--load", path));
  expect_one_line_failure(
      result, 2, "rollout 3: the reward failed on every sample of 3 rollouts in a row (--max-failed-rollouts)");
  EXPECT_NE(last_line(result.err).find("ValueError: never (reward.py:2)"), std::string::npos) << result.err;
  EXPECT_TRUE(base::file_exists(path + "/checkpoints/step_000003/state.json")) << "the last step is saved";
  int64_t num_counted = 0;
  for (const base::Json& record : json_lines(path + "/metrics.jsonl"))
    num_counted += record.value("fault/grader_always_fails", 0.0) == 12.0 ? 1 : 0;
  EXPECT_EQ(num_counted, 3);
}

}  // namespace
}  // namespace tandem::cli
