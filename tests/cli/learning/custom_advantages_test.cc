// Checks advantages that a function of the user's computes, and several rewards that are normalised apart, through the
// whole program.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/files.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/ranks/rank_runs.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

// Writes functions whose numbers differ by sample, token and rollout; what they compute of a rollout depends on the one
// before.
std::string write_functions(const base::TemporaryDirectory& folder) {
  base::write_file_durably(folder / "advantages.py",
                           "def tokens(groups, state, args):\n"
                           "    assert args.lr == 1e-3 and len(groups) == 3, args\n"
                           "    state['seen'] = state.get('seen', 0) + len(groups)\n"
                           "    result = []\n"
                           "    for group in groups:\n"
                           "        first = group.samples[0]\n"
                           "        assert group.prompt_index is not None and list(first.rewards) == ['reward']\n"
                           "        assert len(first.log_probs) == len(first.loss_mask) == first.length\n"
                           "        assert all(p < 0 for p in first.log_probs) and first.advantage is not None\n"
                           "        result.append([None] + [[s.advantage + 0.01 * state['seen'] * (t % 3)\n"
                           "                                 for t, _ in enumerate(s.tokens)]\n"
                           "                                for s in group.samples[1:]])\n"
                           "    return result\n"
                           "def same(groups):\n"
                           "    return [[sample.advantage for sample in group.samples] for group in groups]\n"
                           "def second_fails(groups, state):\n"
                           "    state['calls'] = state.get('calls', 0) + 1\n"
                           "    print('called', state['calls'])\n"
                           "    return same(groups) if state['calls'] == 1 else 1 / 0\n"
                           "def second_takes_long(groups, state, args):\n"
                           "    import time\n"
                           "    state['calls'] = state.get('calls', 0) + 1\n"
                           "    print('called', state['calls'], flush=True)\n"
                           "    time.sleep(2 if state['calls'] == 2 else 0)\n"
                           "    return [[s.advantage + 0.1 * state['calls'] * i for i, s in enumerate(g.samples)]\n"
                           "            for g in groups]\n");
  return folder / "advantages.py";
}

class CustomAdvantages : public testing::Test {
 protected:
  Arguments arguments(const std::string& name, const std::string& function, const Arguments& more = {}) const {
    Arguments result = with_custom_reward(train_arguments(folder_ / name, more), write_reward(folder_));
    if (!function.empty()) result.insert(result.end(), {"--custom-advantage-path", functions_ + ":" + function});
    return result;
  }
  std::vector<base::Json> records(const std::string& name, const std::string& with) const {
    std::vector<base::Json> found;
    for (const base::Json& record : json_lines(folder_ / name + "/metrics.jsonl")) {
      if (record.contains(with)) found.push_back(record);
    }
    return found;
  }
  base::TemporaryDirectory folder_;
  const std::string functions_ = write_functions(folder_);
};

TEST_F(CustomAdvantages, ReachEachTokenAndAreResumedWithTheirState) {
  const Arguments all = arguments(
      "all", "tokens",
      {"--save-interval", "1", "--dtype", "float32", "--save-debug-rollout-data", folder_ / "{rollout_id}.jsonl"});
  const Captured result = run(all);
  ASSERT_EQ(result.code, 0) << result.err;
  for (const base::Json& record : records("all", "rollout/step")) {
    EXPECT_EQ(record["rollout/advantage_none"], 3.0);
    EXPECT_GT(record["perf/custom_advantage_time"], 0.0);
  }
  for (int rollout = 0; rollout < 2; ++rollout) {
    const std::vector<base::Json> samples = json_lines(folder_ / std::to_string(rollout) + ".jsonl");
    for (size_t i = 0; i < samples.size(); ++i) {
      EXPECT_EQ(samples[i]["remove_sample"], i % 4 == 0) << i;
      if (i % 4 == 0) continue;
      const base::Json& values = samples[i]["advantages"];
      ASSERT_EQ(values.size(), samples[i]["response_tokens"].size());
      EXPECT_NEAR(values[2].get<double>() - values[0].get<double>(), 0.02 * 3 * (rollout + 1), 1e-12);
    }
  }
  // The first step of a rollout is on the policy that sampled it, whatever the advantages are.
  EXPECT_EQ(records("all", "train/step")[2]["train/train_rollout_logprob_abs_diff"], 0.0);
  Arguments first =
      with_flag(arguments("killed", "tokens", {"--save-interval", "1", "--dtype", "float32"}), "--num-rollout", "1");
  ASSERT_EQ(run(first).code, 0);
  first.insert(first.end(), {"--load", folder_ / "killed"});
  const Captured resumed = run(with_flag(first, "--num-rollout", "2"));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(weights_of(folder_ / "killed"), weights_of(folder_ / "all"));
  Arguments other = with_flag(with_flag(first, "--num-rollout", "3"), "--custom-advantage-path", functions_ + ":same");
  expect_one_line_failure(run(other), 2, "the function of --custom-advantage-path was");
  // Each rank trains on what rank 0 was given.
  const Captured ranks =
      run_program(with_ranks(arguments("ranks", "tokens", {"--save-interval", "1", "--dtype", "float32"}), 2));
  ASSERT_EQ(ranks.code, 0) << ranks.err;
  EXPECT_EQ(weights_of(folder_ / "ranks"), weights_of(folder_ / "all"));
}

// The generate function makes three turns of three tokens, with two of its own between them.
TEST_F(CustomAdvantages, OfTurnsAreThoseOfTheTokensThatWereSampledInThem) {
  base::write_file_durably(
      folder_ / "turns.py",
      "def turns(groups):\n"
      "    return [[[k + 1.0 for k, _ in enumerate(s.turns)] for s in g.samples] for g in groups]\n");
  Arguments arguments =
      train_arguments(folder_ / "turns", {"--custom-generate-function-path", "tests/cli/generate/turns.py:turns",
                                          "--custom-advantage-path", folder_ / "turns.py:turns",
                                          "--save-debug-rollout-data", folder_ / "turns/{rollout_id}.jsonl"});
  arguments = with_flag(with_custom_reward(arguments, "tests/cli/generate/turns.py:reward"), "--num-rollout", "1");
  const Captured result = run(with_flag(arguments, "--rollout-max-response-len", "16"));
  ASSERT_EQ(result.code, 0) << result.err;
  for (const base::Json& sample : json_lines(folder_ / "turns/0.jsonl")) {
    EXPECT_EQ(sample["advantages"].get<std::vector<double>>(),
              (std::vector<double>{1, 1, 1, 0, 0, 2, 2, 2, 0, 0, 3, 3, 3}));
  }
}

TEST_F(CustomAdvantages, ThatAreTheEstimatorsChangeNoBit) {
  ASSERT_EQ(run(arguments("same", "same")).code, 0);
  ASSERT_EQ(run(arguments("plain", "")).code, 0);
  EXPECT_EQ(weights_of(folder_ / "same"), weights_of(folder_ / "plain"));
}

// tests/run/patience_test.cc asks when such a run ends.
TEST_F(CustomAdvantages, ThatFailAreCountedAndTrainNothing) {
  const Captured result = run(arguments("fails", "second_fails"));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("rollout 2: --custom-advantage-path failed, so nothing is learnt from this rollout: "
                            "ZeroDivisionError: division by zero (advantages.py:"),
            std::string::npos)
      << result.err;
  const std::vector<base::Json> rollouts = records("fails", "rollout/step");
  EXPECT_FALSE(rollouts[0].contains("fault/custom_advantage"));
  EXPECT_EQ(rollouts[1]["fault/custom_advantage"], 1.0);
  for (const base::Json& step : records("fails", "train/step")) {
    EXPECT_EQ(step["train/zero_gradient"].get<double>() != 0.0, step["train/step"].get<int>() >= 2) << step;
  }
  expect_one_line_failure(run(arguments("none", "nothing")), 2, "the file has no nothing; its functions: ");
}

TEST_F(CustomAdvantages, RewardsThatAreNormalisedApartTrainAndReplay) {
  base::write_file_durably(
      folder_ / "two.py",
      "def large(completion_ids, **kwargs):\n"
      "    return [1000.0 * (ids[0] % 5) for ids in completion_ids]\n"
      "def small(completion_ids, **kwargs):\n"
      "    return [None if ids[0] % 3 == 0 else 0.001 * (ids[1] % 7) for ids in completion_ids]\n");
  const Arguments two = {folder_ / "two.py:small", "--multi-objective-aggregation", "normalize_then_sum",
                         "--save-debug-rollout-data", folder_ / "apart/{rollout_id}.jsonl"};
  Arguments arguments = with_custom_reward(train_arguments(folder_ / "apart"), folder_ / "two.py:large");
  const auto at = std::find(arguments.begin(), arguments.end(), "--custom-rm-path");
  arguments.insert(at + 2, two.begin(), two.end());
  const Captured result = run(with_flag(arguments, "--num-rollout", "1"));
  ASSERT_EQ(result.code, 0) << result.err;
  // The small reward decides between samples whose large one is the same.
  bool decides = false;
  const std::vector<base::Json> samples = json_lines(folder_ / "apart/0.jsonl");
  for (size_t i = 0; i < samples.size(); ++i) {
    for (size_t j = i / 4 * 4; j < i; ++j) {
      const base::Json &a = samples[i]["rewards"], &b = samples[j]["rewards"];
      if (a["large"] != b["large"] || a["small"].is_null() || b["small"].is_null() || a["small"] == b["small"])
        continue;
      decides = true;
      const double difference = samples[i]["advantages"][0].get<double>() - samples[j]["advantages"][0].get<double>();
      EXPECT_EQ(difference > 0.0, a["small"].get<double>() > b["small"].get<double>());
      EXPECT_GT(std::abs(difference), 0.1);
    }
  }
  EXPECT_TRUE(decides);
  Arguments replay = with_flag(with_flag(arguments, "--num-rollout", "1"), "--save", folder_ / "replay");
  replay = with_flag(replay, "--save-debug-rollout-data", folder_ / "replay/{rollout_id}.jsonl");
  replay.insert(replay.end(), {"--load-debug-rollout-data", folder_ / "apart/{rollout_id}.jsonl"});
  const Captured again = run(replay);
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(weights_of(folder_ / "replay"), weights_of(folder_ / "apart"));
  expect_one_line_failure(run(with_flag(with_flag(arguments, "--save", folder_ / "x"), "--rm-failure-reward", "0")), 2,
                          "--multi-objective-aggregation normalize_then_sum and --rm-failure-reward 0");
}

// A sample whose generation failed was not graded: each reward is None there, under its name.
TEST_F(CustomAdvantages, SeeEachRewardByNameAlsoWhereTheGenerationFailed) {
  base::write_file_durably(folder_ / "generate.py",
                           "from slime.rollout.sglang_rollout import generate\n"
                           "async def fails(args, sample, sampling_params):\n"
                           "    if sample.index % 4 == 0:\n"
                           "        raise ValueError('no tool')\n"
                           "    return await generate(args, sample, sampling_params)\n");
  base::write_file_durably(folder_ / "named.py",
                           "def length(completion_ids, **kwargs):\n"
                           "    return [float(len(ids) + ids[0] % 5) for ids in completion_ids]\n"
                           "def first(completion_ids, **kwargs):\n"
                           "    return [float(ids[0] % 7) for ids in completion_ids]\n"
                           "def named(groups):\n"
                           "    for sample in groups[0].samples:\n"
                           "        assert list(sample.rewards) == ['length', 'first'], sample.rewards\n"
                           "    assert groups[0].samples[0].rewards == {'length': None, 'first': None}\n"
                           "    return [[sample.advantage for sample in group.samples] for group in groups]\n");
  Arguments arguments = with_custom_reward(train_arguments(folder_ / "named"), folder_ / "named.py:length");
  arguments.insert(std::ranges::find(arguments, "--custom-rm-path") + 2, folder_ / "named.py:first");
  arguments.insert(arguments.end(), {"--custom-generate-function-path", folder_ / "generate.py:fails",
                                     "--custom-advantage-path", folder_ / "named.py:named"});
  const Captured result = run(with_flag(arguments, "--num-rollout", "1"));
  ASSERT_EQ(result.code, 0) << result.err;
  for (const base::Json& record : records("named", "rollout/step"))
    EXPECT_FALSE(record.contains("fault/custom_advantage")) << result.err;
}

// A signal gives up the second rollout before its first optimizer step. What is saved is the first one, with the state
// that the function had then.
TEST_F(CustomAdvantages, OfARolloutThatIsGivenUpAreComputedAgain) {
  const Arguments words = arguments("cut", "second_takes_long", {"--stop-grace-seconds", "0"});
  {
    const Program program(words);
    wait_for_text(folder_ / "cut/grader_output.txt", "called 2");
    program.signal(SIGTERM);
    EXPECT_EQ(program.wait(), 0);
  }
  EXPECT_NE(base::read_file(folder_ / "cut/log.txt").find("rollout 2 was abandoned "), std::string::npos);
  EXPECT_EQ(base::read_file(folder_ / "cut/checkpoints/latest"), "step_000001\n");
  Arguments rest = words;
  rest.insert(rest.end(), {"--load", folder_ / "cut"});
  const Captured resumed = run(rest);
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  ASSERT_EQ(run(arguments("whole", "second_takes_long")).code, 0);
  EXPECT_EQ(weights_of(folder_ / "cut"), weights_of(folder_ / "whole"));
  EXPECT_EQ(timeless_metrics(folder_ / "cut"), timeless_metrics(folder_ / "whole"));
}

// A run whose advantages are all 0, or fail, names --custom-advantage-path as the cause.
TEST_F(CustomAdvantages, OnesThatTeachNothingAreTheFunctionsFault) {
  base::write_file_durably(folder_ / "bad.py",
                           "def none(groups):\n    return [[None for s in g.samples] for g in groups]\n"
                           "def fails(groups):\n    return 1 / 0\n");
  const auto words = [&](const std::string& function) {
    Arguments result = arguments(function, "");
    result.insert(result.end(), {"--custom-advantage-path", folder_ / ("bad.py:" + function)});
    return result;
  };
  const Captured none = run(words("none"));
  EXPECT_EQ(none.code, 0);
  EXPECT_NE(none.err.find("so nothing is learnt: check what --custom-advantage-path "), std::string::npos) << none.err;
  const Captured fails = run(words("fails"));
  EXPECT_EQ(fails.code, 2);
  EXPECT_NE(last_line(fails.err).find("--custom-advantage-path failed in each of the run's "), std::string::npos)
      << fails.err;
  EXPECT_EQ(fails.err.find("check what --custom-advantage-path"), std::string::npos) << "it returned nothing";
}

}  // namespace
}  // namespace tandem::cli
