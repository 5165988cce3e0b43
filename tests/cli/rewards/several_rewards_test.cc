// Checks several rewards, rewards that lines ask for, and a reward that a service computes, through the whole program.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <thread>

#include "base/files.h"
#include "reward/reward_rules.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/tiny_run.h"
#include "tests/cli/workers/process_sockets.h"
#include "tests/reward/reward_service.h"
#include "text/text_worker.h"

namespace tandem::cli {
namespace {

// Returns the arguments of a run without its reward.
Arguments without_reward(Arguments arguments) {
  const auto at = std::find(arguments.begin(), arguments.end(), "--rm-type");
  arguments.erase(at, at + 2);
  return arguments;
}

Arguments with(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::string write_functions(const base::TemporaryDirectory& folder) {
  base::write_file_durably(folder / "reward.py",
                           "def words(completion_ids, **kwargs):\n"
                           "    return [None if ids[0] % 3 == 0 else float(ids[0] % 5) for ids in completion_ids]\n"
                           "async def reward(args, sample):\n"
                           "    assert args.rm_type == 'f1' and args.reward_weights == [0.5, 1.0, -0.25], args\n"
                           "    return {'score': len(sample.tokens) % 3, 'tokens': len(sample.tokens)}\n");
  return folder / "reward.py";
}

// Returns the first record of a run that has this number.
base::Json first_with(const std::string& run, const std::string& name) {
  for (const base::Json& record : json_lines(run + "/metrics.jsonl")) {
    if (record.contains(name)) return record;
  }
  ADD_FAILURE() << run << " has no " << name;
  return base::Json::object();
}

TEST(SeveralRewards, AreAddedUpAndEachIsLoggedByName) {
  base::TemporaryDirectory folder;
  const std::string file = write_functions(folder);
  const Arguments rewards = {
      "--rm-type", "f1",   "--custom-rm-path", file + ":words", file + ":reward", "--reward-weights", "0.5",
      "1",         "-0.25"};
  const Arguments arguments =
      with(without_reward(train_arguments(
               folder / "run", {"--save-interval", "1", "--eval-prompt-data", "small", kPrompts + "@[0:2]",
                                "--eval-interval", "2", "--save-debug-rollout-data", folder / "{rollout_id}.jsonl",
                                "--log-passrate", "--pass-reward", "words", "--pass-threshold", "3"})),
           rewards);
  const Captured result = run(arguments);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("rewards: 0.5 x f1 + 1 x words + -0.25 x reward"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("pass@k counts samples with words >= 3"), std::string::npos) << result.out;
  std::map<std::string, std::vector<double>> given;
  for (const base::Json& sample : json_lines(folder / "0.jsonl")) {
    double sum = 0.0;
    for (const auto& [name, weight] : std::map<std::string, double>{{"f1", 0.5}, {"words", 1.0}, {"reward", -0.25}}) {
      const base::Json& part = sample["rewards"].at(name);
      EXPECT_EQ(part.is_null(), name == "words" && sample["response_tokens"][0].get<int>() % 3 == 0) << sample;
      if (part.is_null()) continue;
      sum += weight * part.get<double>();
      given[name].push_back(part.get<double>());
    }
    EXPECT_DOUBLE_EQ(sample["reward"].get<double>(), sum) << sample;
    EXPECT_EQ(sample["reward_reward/tokens"].get<double>(),
              static_cast<double>(sample["prompt_tokens"].size() + sample["response_tokens"].size()));
  }
  const base::Json record = first_with(folder / "run", "rollout/step");
  for (const auto& [name, values] : given) {
    double mean = 0.0, squares = 0.0;
    for (const double value : values) mean += value / static_cast<double>(values.size());
    for (const double value : values) squares += (value - mean) * (value - mean);
    EXPECT_NEAR(record.value("rollout/rewards/" + name + "/mean", -1.0), mean, 1e-12) << record;
    EXPECT_NEAR(record.value("rollout/rewards/" + name + "/std", -1.0),
                std::sqrt(squares / static_cast<double>(values.size() - 1)), 1e-12);
  }
  EXPECT_FALSE(record.contains("rollout/grader_failed/none")) << record;
  // A sample passes by that reward alone, before its weight; a sample that it does not apply to is left out.
  const auto num_passed = std::ranges::count_if(given["words"], [](double value) { return value >= 3.0; });
  EXPECT_GT(num_passed, 0);
  EXPECT_NEAR(record.value("passrate/pass@1", -1.0),
              static_cast<double>(num_passed) / static_cast<double>(given["words"].size()), 1e-12);
  EXPECT_TRUE(first_with(folder / "run", "eval/small").contains("eval/small/rewards/f1/mean"));

  // A run that is killed after the first rollout and resumed has the same bits. Training from its files gives the same
  // record.
  Arguments first = arguments;
  *(std::find(first.begin(), first.end(), "--save") + 1) = folder / "killed";
  ASSERT_EQ(run(with_flag(first, "--num-rollout", "1")).code, 0);
  const Captured resumed = run(with(first, {"--load", folder / "killed", "--allow-changed-config"}));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(weights_of(folder / "killed"), weights_of(folder / "run"));
  Arguments changed = with(first, {"--load", folder / "killed", "--num-rollout", "3"});
  std::swap(*(std::find(changed.begin(), changed.end(), file + ":words")),
            *(std::find(changed.begin(), changed.end(), file + ":reward")));
  expect_one_line_failure(run(changed), 2, "function 1 of --custom-rm-path was :words and is :reward");
  Arguments replayed = with(arguments, {"--load-debug-rollout-data", folder / "{rollout_id}.jsonl"});
  *(std::find(replayed.begin(), replayed.end(), "--save") + 1) = folder / "replayed";
  *(std::find(replayed.begin(), replayed.end(), "--save-debug-rollout-data") + 1) = folder / "again{rollout_id}.jsonl";
  const Captured again = run(replayed);
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(first_with(folder / "replayed", "rollout/step").value("rollout/rewards/words/mean", -1.0),
            record["rollout/rewards/words/mean"].get<double>());
  EXPECT_EQ(first_with(folder / "replayed", "rollout/step").value("passrate/pass@1", -1.0),
            record["passrate/pass@1"].get<double>());
}

TEST(SeveralRewards, OfAllBuiltInRulesAtOnce) {
  base::TemporaryDirectory folder;
  reward::ServiceProcess service(worker::default_worker_config().python);
  // A text that each rule can compare with, `code` too, to which it is a program of tests, and an instruction for
  // ifbench.
  const std::string line =
      R"({"prompt": "2+2", "label": "assert f(2) == 4", "instruction_id_list": ["punctuation:no_comma"]})";
  base::write_file_durably(folder / "data.jsonl", line + "\n" + line + "\n");
  Arguments arguments = {"eval",
                         "--hf-checkpoint",
                         kModel,
                         "--eval-prompt-data",
                         "a",
                         folder / "data.jsonl",
                         "--rollout-max-response-len",
                         "4",
                         "--output",
                         folder / "eval.json",
                         "--rm-num-workers",
                         "1",
                         "--rm-url",
                         service.url(),
                         "--rm-type"};
  const std::vector<std::string> names = reward::rule_names();
  const Captured result = run(with(arguments, names));
  ASSERT_EQ(result.code, 0) << result.err;
  const base::Json record = json_lines(folder / "eval.json").at(0);
  for (const std::string& name : names) EXPECT_TRUE(record.contains("eval/a/rewards/" + name + "/mean")) << record;
  expect_one_line_failure(run(with(arguments, {"f1", "--reward-weights", "1", "2"})), 2,
                          "--reward-weights: 2 weights given for 1 reward (f1)");
  // No reward asks the service: that mistake is found when the lines are read.
  expect_one_line_failure(run(with(arguments, {"f1"})), 2, "--rm-url: no reward asks it; add --rm-type remote_rm");
}

TEST(RewardsOfLines, TakeThePlaceOfTheFlag) {
  base::TemporaryDirectory folder;
  std::string lines;
  for (const char* type : {"exact", "boxed_math", "random"}) {
    lines += fmt::format(R"({{"prompt": "2+2", "label": "4", "metadata": {{"rm_type": "{}"}}}})", type) + "\n";
  }
  base::write_file_durably(folder / "all.jsonl", lines);
  base::write_file_durably(folder / "some.jsonl", lines + R"({"prompt": "2+2", "label": "4"})" + "\n");
  const auto evaluated = [&](const std::string& data, const Arguments& more) {
    return run(with({"eval", "--hf-checkpoint", kModel, "--eval-prompt-data", "a", data, "--rollout-max-response-len",
                     "4", "--sample-output", folder / "samples.jsonl"},
                    more));
  };
  EXPECT_EQ(evaluated(folder / "all.jsonl", {}).code, 0);
  EXPECT_FALSE(json_lines(folder / "samples.jsonl").at(0).contains("rewards"));  // one reward is no sum
  EXPECT_EQ(evaluated(folder / "some.jsonl", {"--rm-type", "dapo"}).code, 0);
  EXPECT_EQ(json_lines(folder / "samples.jsonl").at(3)["reward"], -1.0);  // score by the flag's type
  EXPECT_EQ(json_lines(folder / "samples.jsonl").at(0)["reward"], 0.0);   // score by the line's type
  const std::string some = folder / "some.jsonl";
  expect_one_line_failure(
      evaluated(some, {}), 2,
      some +
          ":4:1: no reward is given, neither by a flag nor here (rm_type in the metadata of a line): give "
          "--rm-type exact, math, dapo, deepscaler, f1, gpqa, random, none, code or ifbench, or --custom-rm-path");
  expect_one_line_failure(
      evaluated(some, {"--rm-type", "f1", "exact"}), 2,
      some + ":1:46: rm_type exact takes the place of --rm-type, and there are 2 of it (f1, exact)");
  struct Row {
    const char* metadata;
    const char* says;
  };
  for (const Row& row : {Row{R"({"rm_type": "mth"})", "rm_type mth is none of exact, math, dapo"},
                         Row{R"({"rm_type": "remote_rm"})", "; remote_rm needs --rm-url"},
                         Row{R"({"rm_type": 3})", "rm_type is a number - write the name of a reward"},
                         Row{R"({"rm_type": "f1"})",
                             "the key label is missing: there are prompt, metadata, and the rm_type f1 compares"}}) {
    base::write_file_durably(folder / "bad.jsonl",
                             std::string(R"({"prompt": "2+2", "metadata": )") + row.metadata + "}\n");
    expect_one_line_failure(evaluated(folder / "bad.jsonl", {"--rm-type", "random"}), 2, row.says);
  }
  // A function reads its own metadata, and needs no name that we know.
  base::write_file_durably(folder / "bad.jsonl", R"({"prompt": "2+2", "metadata": {"rm_type": "mine"}})"
                                                 "\n");
  base::write_file_durably(folder / "reward.py",
                           "async def reward(args, sample):\n"
                           "    return float(sample.metadata['rm_type'] == 'mine' and args.rm_type is None)\n");
  ASSERT_EQ(evaluated(folder / "bad.jsonl", {"--custom-rm-path", folder / "reward.py:reward"}).code, 0);
  EXPECT_EQ(json_lines(folder / "samples.jsonl").at(0)["reward"], 1.0);
}

TEST(ServedReward, TrainsAndItsProcessAloneOpensSockets) {
  base::TemporaryDirectory folder;
  reward::ServiceProcess service(worker::default_worker_config().python);
  ::setenv("TANDEM_RM_TOKEN", "a-token-of-ours", 1);
  const Arguments arguments =
      with(without_reward(train_arguments(folder / "run")), {"--rm-url", service.url(), "--rm-timeout", "20"});
  const Captured result = run(arguments);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("remote_rm asks " + service.address() + ": the process that asks may open sockets, no "),
            std::string::npos)
      << result.out;
  EXPECT_EQ((result.out + result.err).find("a-secret"), std::string::npos);
  for (const base::Json& sample : json_lines(folder / "run/samples/rollout_000000.jsonl")) {
    const double characters = static_cast<double>(sample["response"].get<std::string>().size());
    EXPECT_TRUE(sample["reward"].is_number() && sample["reward"] < 5.0 && characters >= 0.0) << sample;
  }
  for (const char* file : {"run/config.toml", "run/log.txt", "run/metrics.jsonl", "run/grader_output.txt"}) {
    if (base::file_exists(folder / file)) {
      EXPECT_EQ(base::read_file(folder / file).find("a-token-of-ours"), std::string::npos) << file;
    }
  }

  // With a function as well, one of all processes of the run has sockets, and they lead to the service.
  base::write_file_durably(folder / "reward.py",
                           "def reward(completions, **kwargs):\n"
                           "    import time; time.sleep(0.5)\n"
                           "    return [0.0] * len(completions)\n");
  Arguments both = with(arguments, {"--custom-rm-path", folder / "reward.py:reward", "--rm-type", "remote_rm"});
  *(std::find(both.begin(), both.end(), "--save") + 1) = folder / "both";
  const Program program(both);
  std::set<std::string> holders;
  while (!program.wait_for(0.05)) {
    for (const std::string& pid : process_tree(program.pid())) {
      if (!internet_sockets(pid).empty()) holders.insert(pid);
    }
  }
  EXPECT_EQ(program.wait(), 0);
  EXPECT_GE(holders.size(), 1U);
  EXPECT_LE(holders.size(), 2U);  // one process tries the connection out, and one asks
  ::unsetenv("TANDEM_RM_TOKEN");

  service.stop();
  Arguments late = arguments;
  *(std::find(late.begin(), late.end(), "--save") + 1) = folder / "late";
  expect_one_line_failure(
      run(with(late, {"--dry-run"})), 3,
      "--rm-url: cannot connect to " + service.address() + ": connection refused; start the reward service first");
}

TEST(ServedReward, AFunctionStillHasNoNetwork) {
  base::TemporaryDirectory folder;
  reward::ServiceProcess service(worker::default_worker_config().python);
  base::write_file_durably(folder / "reward.py",
                           "import socket\n"
                           "def score(data_source, solution_str, ground_truth, extra_info=None):\n"
                           "    try:\n"
                           "        socket.socket().connect(('127.0.0.1', 9))\n"
                           "    except PermissionError:\n"
                           "        return 7\n"
                           "    except OSError as error:\n"
                           "        return 8\n"
                           "    return 9\n");
  const Captured result = run({"eval", "--hf-checkpoint", kModel, "--eval-prompt-data", "a", kPrompts + "@[0:2]",
                               "--rollout-max-response-len", "4", "--output", folder / "eval.json", "--rm-type",
                               "remote_rm", "--rm-url", service.url(), "--custom-rm-path", folder / "reward.py:score"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json_lines(folder / "eval.json").at(0)["eval/a/rewards/score/mean"], 7.0);
}

}  // namespace
}  // namespace tandem::cli
