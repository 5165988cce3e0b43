// Checks dynamic sampling through the whole program: the groups that a run trains on do not depend on timing.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/files.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

// Writes a reward that is equal within a group for about half of the prompts: 0 for some, 1 for others. `late` makes
// the graders of some groups slow, so that groups are decided in another order.
std::string write_half_equal_reward(const base::TemporaryDirectory& folder, bool late = false) {
  const std::string name = late ? "late" : "reward";
  base::write_file_durably(
      folder / (name + ".py"),
      "import time\n"
      "def reward(prompts, completions, **kwargs):\n"
      "    kind = len(prompts[0][0]['content']) % 4\n" +
          std::string(late ? "    time.sleep(0.03 * kind)\n" : "") +
          "    if kind < 2: return [float(kind)] * len(completions)\n"
          "    return [float((len(c[0]['content']) + i) % 3) for i, c in enumerate(completions)]\n");
  return folder / (name + ".py:reward");
}

Arguments filtered(const std::string& save, const std::string& reward, const Arguments& more = {}) {
  Arguments arguments =
      with_custom_reward(train_arguments(save, {"--rollout-shuffle", "--save-interval", "1"}), reward);
  arguments = with_flag(with_flag(arguments, "--rollout-max-response-len", "4"), "--prompt-data", kPrompts + "@[0:16]");
  arguments.insert(arguments.end(), {"--dynamic-sampling-filter-path", "nonzero_std"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::vector<base::Json> rollout_records(const std::string& run) {
  std::vector<base::Json> records;
  for (const base::Json& record : json_lines(run + "/metrics.jsonl")) {
    if (record.contains("rollout/step")) records.push_back(record);
  }
  return records;
}

// Returns all that must be equal, samples too, which show ids.
std::string everything_of(const std::string& run) {
  std::string text = timeless_metrics(run) + weights_of(run);
  for (const std::string& name : base::list_directory(run + "/samples"))
    text += name + base::read_file(run + "/samples/" + name);
  return text;
}

// One run that nothing happens to is compared with all others.
class DynamicSampling : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = new base::TemporaryDirectory();
    undisturbed_ = *shared_ / "undisturbed";
    const Captured result = run(filtered(undisturbed_, write_half_equal_reward(*shared_)));
    ASSERT_EQ(result.code, 0) << result.err;
  }
  static void TearDownTestSuite() { delete shared_; }

  static inline base::TemporaryDirectory* shared_ = nullptr;
  static inline std::string undisturbed_;
};

TEST_F(DynamicSampling, ARolloutHasTheFirstGroupsThatPass) {
  uint64_t end = 0;  // end of the ids of the rollouts before
  double num_dropped = 0.0;
  for (const base::Json& record : rollout_records(undisturbed_)) {
    const auto rollout = record["rollout/step"].get<int>();
    const auto samples = json_lines(undisturbed_ + ("/samples/rollout_00000" + std::to_string(rollout) + ".jsonl"));
    ASSERT_EQ(samples.size(), 12U);
    for (size_t g = 0; g < 3; ++g) {
      std::set<double> rewards;
      for (size_t i = 0; i < 4; ++i) {
        const base::Json& sample = samples[4 * g + i];
        EXPECT_EQ(sample["sample_id"], sample["group_id"].get<uint64_t>() * 4 + i);
        rewards.insert(sample["reward"].get<double>());
      }
      EXPECT_GT(rewards.size(), 1U);
      if (g > 0) {
        EXPECT_GT(samples[4 * g]["sample_id"], samples[4 * g - 4]["sample_id"]);
      }
    }
    EXPECT_GE(samples.front()["sample_id"].get<uint64_t>(), end);
    const uint64_t groups = samples.back()["group_id"].get<uint64_t>() + 1 - end / 4;
    end = (samples.back()["group_id"].get<uint64_t>() + 1) * 4;
    EXPECT_EQ(record["rollout/dynamic_filter/groups"], groups) << "the next rollout begins behind the last group taken";
    const double dropped = record["rollout/dynamic_filter/dropped"].get<double>();
    EXPECT_EQ(dropped, static_cast<double>(groups) - 3.0);
    EXPECT_EQ(dropped, record.value("rollout/dynamic_filter/drop_zero_std_0.0", 0.0) +
                           record.value("rollout/dynamic_filter/drop_zero_std_1.0", 0.0) +
                           record.value("rollout/dynamic_filter/drop_zero_std_2.0", 0.0));
    EXPECT_EQ(record["perf/dynamic_filter/excess_groups"], 0.0) << "no more than a rollout are under way";
    EXPECT_EQ(record["rollout/groups_with_equal_rewards"], 0.0);
    EXPECT_TRUE(record.contains("rollout/dynamic_filter/raw_reward"));
    num_dropped += dropped;
  }
  EXPECT_GT(num_dropped, 0.0);
  const std::string lines = base::read_file(undisturbed_ + "/log.txt");
  EXPECT_NE(lines.find("groups kept"), std::string::npos) << lines;
}

TEST_F(DynamicSampling, IsAValueWhateverTheTiming) {
  const base::TemporaryDirectory folder;
  const std::string late = write_half_equal_reward(folder, /*late=*/true);
  const Captured other =
      run(filtered(folder / "run", late,
                   {"--over-sampling-batch-size", "9", "--rm-num-workers", "3", "--rollout-max-running", "5"}));
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_EQ(everything_of(undisturbed_), everything_of(folder / "run"));
  double num_excess = 0.0;
  for (const base::Json& record : rollout_records(folder / "run"))
    num_excess += record["perf/dynamic_filter/excess_groups"].get<double>();
  EXPECT_GT(num_excess, 0.0);
}

TEST_F(DynamicSampling, AFilterThatKeepsAllIsNoFilter) {
  const base::TemporaryDirectory folder;
  const std::string reward = write_half_equal_reward(folder);
  base::write_file_durably(folder / "filter.py", "def keep(args, samples, **kwargs): return True\n");
  Arguments plain = with_flag(filtered(folder / "plain", reward), "--num-rollout", "1");
  plain.resize(plain.size() - 2);
  ASSERT_EQ(run(plain).code, 0);
  ASSERT_EQ(run(with_flag(with_flag(filtered(folder / "kept", reward), "--num-rollout", "1"),
                          "--dynamic-sampling-filter-path", folder / "filter.py:keep"))
                .code,
            0);
  EXPECT_EQ(weights_of(folder / "plain"), weights_of(folder / "kept"));
  EXPECT_EQ(base::read_file(folder / "plain/samples/rollout_000000.jsonl"),
            base::read_file(folder / "kept/samples/rollout_000000.jsonl"));
  EXPECT_EQ(base::read_file(folder / "plain/metrics.jsonl").find("dynamic_filter"), std::string::npos);
}

TEST_F(DynamicSampling, AResumedRunIsTheOneThatWasNotKilled) {
  const base::TemporaryDirectory folder;
  const std::string reward = write_half_equal_reward(folder);
  const Arguments resumed = filtered(
      folder / "run", reward, {"--over-sampling-batch-size", "5", "--load", folder / "run", "--allow-fresh-start"});
  const Program program(resumed);
  while (!base::file_exists(folder / "run/checkpoints/latest") && !program.wait_for(0.05)) {
  }
  program.signal(SIGKILL);
  program.wait();
  const Captured result = run(resumed);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(everything_of(undisturbed_), everything_of(folder / "run"));
  // Results depend on the filter.
  Arguments without = filtered(folder / "run", reward, {"--load", folder / "run"});
  const auto at = std::find(without.begin(), without.end(), "--dynamic-sampling-filter-path");
  without.erase(at, at + 2);
  expect_one_line_failure(run(without), 2,
                          "the filter of --dynamic-sampling-filter-path was nonzero_std and is absent");
}

TEST_F(DynamicSampling, WhatWasLearntIsSavedWhereNothingPassesAnyMore) {
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "reward.py",
                           "def reward(prompts, completions, **kwargs):\n"
                           "    return [float((len(c[0]['content']) + i) % 3) for i, c in enumerate(completions)]\n");
  // The prompts of the first rollout pass, and no others.
  base::write_file_durably(folder / "filter.py", "def keep(args, samples): return samples[0].group_index < 3\n");
  Arguments arguments = with_flag(filtered(folder / "run", folder / "reward.py:reward"),
                                  "--dynamic-sampling-filter-path", folder / "filter.py:keep");
  expect_one_line_failure(run(arguments), 2,
                          "rollout 2/2: --dynamic-sampling-filter-path " + (folder / "filter.py:keep") +
                              " kept none of the 3 groups that a rollout needs, and dropped 30 (30 no_reason), until a "
                              "limit ended the search (30 dropped in a row, at least a whole pass over the data)");
  EXPECT_TRUE(base::file_exists(folder / "run/hf/step_000001/model.safetensors"));
  EXPECT_EQ(rollout_records(folder / "run").size(), 1U);
}

// One prompt in four is useful: without a budget such a rollout continues to sample.
TEST_F(DynamicSampling, ABudgetEndsTheSearchAndTheRunTrainsOnWhatThereIs) {
  const base::TemporaryDirectory folder;
  const std::string late = write_half_equal_reward(folder, /*late=*/true);
  base::write_file_durably(folder / "filter.py", "def keep(args, samples): return samples[0].group_index % 4 == 1\n");
  const auto arguments = [&](const std::string& save, const Arguments& more) {
    Arguments all = with_flag(filtered(save, write_half_equal_reward(folder), {"--max-sampled-groups", "7"}),
                              "--dynamic-sampling-filter-path", folder / "filter.py:keep");
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const Captured result = run(arguments(folder / "run", {}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("rollout 1: of 7 groups --dynamic-sampling-filter-path " + (folder / "filter.py:keep") +
                            " kept 2, fewer than --rollout-batch-size 3, and the rollout is trained on those"),
            std::string::npos)
      << result.err;
  EXPECT_NE(result.out.find("2 of 7 groups kept"), std::string::npos) << result.out;
  const std::vector<base::Json> records = rollout_records(folder / "run");
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0]["rollout/dynamic_filter/groups"], 7.0);
  EXPECT_EQ(records[0]["rollout/dynamic_filter/missing_groups"], 1.0);
  EXPECT_EQ(records[0]["fault/too_few_groups"], 1.0);
  // There are as many optimizer steps as in a whole rollout, of equal shares: 8 samples in place of 12.
  std::vector<double> sizes;
  for (const base::Json& record : json_lines(folder / "run/metrics.jsonl")) {
    if (record.contains("train/global_batch_size")) sizes.push_back(record["train/global_batch_size"].get<double>());
  }
  EXPECT_EQ(sizes, (std::vector<double>{4, 4, 4, 4}));
  EXPECT_EQ(json_lines(folder / "run/samples/rollout_000001.jsonl").front()["group_id"], 9)
      << "the next rollout begins behind the last group looked at";

  // The bits are the same with other timing, with more groups at once, and after a stop after the first rollout.
  Arguments slow = arguments(folder / "slow", {"--over-sampling-batch-size", "9", "--rollout-max-running", "5"});
  *(std::find(slow.begin(), slow.end(), "--custom-rm-path") + 1) = late;
  ASSERT_EQ(run(with_flag(slow, "--num-rollout", "1")).code, 0);
  slow.insert(slow.end(), {"--load", folder / "slow"});
  const Captured resumed = run(slow);
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(everything_of(folder / "run"), everything_of(folder / "slow"));

  expect_one_line_failure(run(arguments(folder / "stop", {"--on-too-few-groups", "stop"})), 2,
                          " kept 2 of the 3 groups that a rollout needs, and dropped 5 (5 no_reason), until a limit "
                          "ended the search (--max-sampled-groups 7): ");
}

TEST_F(DynamicSampling, AFilterThatAlwaysFailsEndsTheRunAsARewardDoes) {
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "filter.py", "def keep(args, samples): raise KeyError('acc')\n");
  const Arguments arguments = with_flag(filtered(folder / "run", write_reward(folder), {"--max-failed-rollouts", "2"}),
                                        "--dynamic-sampling-filter-path", folder / "filter.py:keep");
  const Captured result = run(arguments);
  expect_one_line_failure(result, 2, "the filter of --dynamic-sampling-filter-path failed on every group");
  EXPECT_NE(result.err.find("the filter failed for 3 of 3 groups, which are kept"), std::string::npos) << result.err;
  const std::vector<base::Json> records = rollout_records(folder / "run");
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[1]["fault/dynamic_filter"], 3.0);
}

TEST_F(DynamicSampling, GroupsWhoseGradingFailedAreTakenAndCounted) {
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "reward.py", "def reward(completions, **kwargs): raise KeyError('judge')\n");
  const Captured result = run(filtered(folder / "run", folder / "reward.py:reward", {"--max-failed-rollouts", "2"}));
  expect_one_line_failure(result, 2, "the reward failed on every sample of 2 rollouts in a row");
}

TEST_F(DynamicSampling, WhatContradictsItIsRefused) {
  const base::TemporaryDirectory folder;
  const std::string reward = write_reward(folder);
  const Arguments base = filtered(folder / "run", reward);
  const auto refused = [&](Arguments arguments, const Arguments& more, const std::string& says) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_one_line_failure(run(arguments), 2, says);
    EXPECT_FALSE(base::file_exists(folder / "run/config.toml"));
  };
  Arguments epochs = base;
  *std::find(epochs.begin(), epochs.end(), "--num-rollout") = "--num-epoch";
  refused(epochs, {}, "give --num-rollout");
  refused(base, {"--load-debug-rollout-data", "x_{rollout_id}"}, "leave one out");
  refused(base, {"--over-sampling-batch-size", "2"}, "--over-sampling-batch-size 2: a rollout needs");
  refused(base, {"--over-sampling-batch-size", "0"}, "--over-sampling-batch-size");
  refused(base, {"--max-sampled-groups", "2"}, "--max-sampled-groups 2: a rollout needs --rollout-batch-size 3 groups");
  refused(with_custom_reward(train_arguments(folder / "run"), reward), {"--max-sampled-groups", "9"},
          "--max-sampled-groups 9: needs --dynamic-sampling-filter-path");
  refused(base, {"--dynamic-sampling-filter-path", "zero_std"}, "zero_std: is no filter that is built in");
  refused(base, {"--dynamic-sampling-filter-path", folder / "none.py:keep"}, "is no file");
  refused(base,
          {"--dynamic-sampling-filter-path",
           "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std_with_fallback"},
          "of slime's filters only check_reward_nonzero_std is built in");
  refused(with_custom_reward(train_arguments(folder / "run"), reward), {"--over-sampling-batch-size", "9"},
          "--over-sampling-batch-size 9: needs --dynamic-sampling-filter-path");
}

TEST_F(DynamicSampling, ASignalEndsItWhileRewardsAreWaitedFor) {
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "reward.py",
                           "import time\n"
                           "def reward(completions, **kwargs):\n"
                           "    time.sleep(60)\n"
                           "    return [0.0] * len(completions)\n");
  const Program program(filtered(folder / "run", folder / "reward.py:reward"));
  while (!base::file_exists(folder / "run/metrics.jsonl")) ASSERT_FALSE(program.wait_for(0.05));
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM) << "nothing is saved, and a scheduler is not to take it for success";
  const std::string log = base::read_file(folder / "run/log.txt"), run_path = folder / "run";
  EXPECT_NE(
      log.find("; nothing is saved yet: --overwrite, or --load " + run_path + " --allow-fresh-start, begins again"),
      std::string::npos)
      << log;
  // The same command is refused, and so is --load alone; the flags that these refusals advise are accepted.
  const Arguments words = filtered(run_path, folder / "reward.py:reward");
  expect_one_line_failure(run(words), 2,
                          "there is a run already, of which nothing is saved yet; give --overwrite, or --load " +
                              run_path + " --allow-fresh-start, to begin it again");
  base::write_file_durably(folder / "reward.py",
                           "def reward(completions, **kwargs):\n"
                           "    return [0.0] * len(completions)\n");
  for (const Arguments& advised : {Arguments{"--overwrite"}, Arguments{"--load", run_path, "--allow-fresh-start"}}) {
    Arguments again = words;
    again.insert(again.end(), advised.begin(), advised.end());
    again.emplace_back("--dry-run");
    const Captured result = run(again);
    EXPECT_EQ(result.code, 0) << result.err;
  }
}

}  // namespace
}  // namespace tandem::cli
