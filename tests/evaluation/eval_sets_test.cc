// The file of --eval-config: what its tables say, and where it is wrong.
#include "evaluation/eval_sets.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "base/files.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"

namespace tandem::evaluation {
namespace {

std::vector<config::EvalSet> read(const std::string& text, config::EvalOptions eval = {}) {
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "eval.toml", text);
  eval.eval_config = folder / "eval.toml";
  return read_eval_sets(eval);
}

std::string refusal(const std::string& text) {
  return base::thrown_by([&] {
    config::RewardOptions reward;
    for (const config::EvalSet& set : read(text)) set.reward(reward);
  });
}

TEST(EvalSets, TablesGoBeforeDefaultsAndDefaultsBeforeFlags) {
  config::EvalOptions flags;
  flags.temperature = 0.3;
  flags.top_p = 0.4;
  flags.n_samples_per_eval_prompt = 2;
  const std::vector<config::EvalSet> sets = read(
      "# two sets\n"
      "[eval.defaults]\n"
      "temperature = 0.6\n"
      "n_samples_per_eval_prompt = 4\n"
      "rm_type = \"math\"\n"
      "[[eval.datasets]]\n"
      "name = \"aime\"\n"
      "path = \"aime.jsonl@[0:30]\"\n"
      "n_samples_per_eval_prompt = 16\n"
      "top_k = 20\n"
      "max_response_len = 99\n"
      "label_key = \"answer\"\n"
      "[[eval.datasets]]\n"
      "name = \"code-1.5\"\n"
      "path = \"code.jsonl\"\n"
      "custom_rm_path = \"code.py:run\"\n"
      "reward_key = \"passed\"\n",
      flags);
  ASSERT_EQ(sets.size(), 2U);
  const config::RolloutOptions first = sets[0].options.rollout({}), second = sets[1].options.rollout({});
  EXPECT_EQ(first.n_samples_per_prompt, 16);
  EXPECT_EQ(second.n_samples_per_prompt, 4);
  EXPECT_EQ(first.temperature, 0.6);
  EXPECT_EQ(first.top_p, 0.4);
  EXPECT_EQ(first.top_k, 20);
  EXPECT_EQ(first.response_len(), 99);
  const config::DataOptions data = sets[0].options.data({}, sets[0].path);
  EXPECT_EQ(data.lines.label_key, "answer");
  EXPECT_EQ(data.lines.path, "aime.jsonl@[0:30]");
  EXPECT_EQ(sets[0].reward({}).rm_type, std::vector<std::string>{"math"});
  EXPECT_EQ(sets[1].name, "code-1.5");
}

TEST(EvalSets, ASetsOwnRewardTakesThePlaceOfTrainings) {
  config::RewardOptions training;
  training.custom_rm_path = {"train.py:reward"};
  training.reward_weights = {0.5};
  training.reward_key = "score";
  training.group_rm = true;
  const std::vector<config::EvalSet> sets = read(
      "[[eval.datasets]]\nname = \"a\"\npath = \"a\"\nrm_type = \"exact\"\n"
      "[[eval.datasets]]\nname = \"b\"\npath = \"b\"\nreward_key = \"acc\"\n");
  const config::RewardOptions a = sets.at(0).reward(training), b = sets.at(1).reward(training);
  EXPECT_EQ(a.rm_type, std::vector<std::string>{"exact"});
  EXPECT_TRUE(a.custom_rm_path.empty() && a.reward_weights.empty() && a.reward_key.empty());
  EXPECT_FALSE(a.group_rm);
  EXPECT_EQ(b.custom_rm_path, std::vector<std::string>{"train.py:reward"});
  EXPECT_EQ(b.reward_weights, std::vector<double>{0.5});
  EXPECT_EQ(b.reward_key, "acc");
  EXPECT_TRUE(b.group_rm);
}

TEST(EvalSets, ASetsOwnRewardHasItsOwnRuleOfPassing) {
  config::RewardOptions training;
  training.rm_type = {"math", "f1"};
  training.pass_reward = "f1";
  training.pass_threshold = 0.5;
  const std::vector<config::EvalSet> sets = read(
      "[eval.defaults]\npass_threshold = 0.75\n"
      "[[eval.datasets]]\nname = \"as_training\"\npath = \"a\"\n"
      "[[eval.datasets]]\nname = \"other\"\npath = \"a\"\npass_reward = \"math\"\npass_threshold = 1\n"
      "[[eval.datasets]]\nname = \"own\"\npath = \"a\"\nrm_type = [\"exact\", \"gpqa\"]\n"
      "[[eval.datasets]]\nname = \"both\"\npath = \"a\"\nrm_type = [\"exact\", \"gpqa\"]\npass_reward = \"gpqa\"\n");
  const std::array<const char*, 4> rules = {"f1 >= 0.75", "math >= 1", "exact >= 1", "gpqa >= 1"};
  for (size_t i = 0; i < rules.size(); ++i) EXPECT_EQ(sets.at(i).reward(training).pass_text(), rules[i]);
  EXPECT_NE(refusal("[[eval.datasets]]\nname = \"a\"\npath = \"a\"\nrm_type = \"exact\"\npass_reward = \"f1\"\n")
                .find(":1:1: --pass-reward f1: no reward has that name; give one of exact"),
            std::string::npos);
}

// A table that names its own reward does not take the defaults' reward_key and group_rm, which are of their reward.
TEST(EvalSets, TheDefaultsKeyAndGroupsAreThoseOfTheirReward) {
  const std::vector<config::EvalSet> sets = read(
      "[eval.defaults]\ncustom_rm_path = \"a.py:judge\"\nreward_key = \"score\"\ngroup_rm = true\n"
      "[[eval.datasets]]\nname = \"rule\"\npath = \"a\"\nrm_type = \"math\"\n"
      "[[eval.datasets]]\nname = \"judged\"\npath = \"a\"\n"
      "[[eval.datasets]]\nname = \"by_line\"\npath = \"a\"\nreward_key = \"acc\"\ngroup_rm = false\n");
  const config::RewardOptions rule = sets.at(0).reward({}), judged = sets.at(1).reward({}),
                              by_line = sets.at(2).reward({});
  EXPECT_TRUE(rule.reward_key.empty() && !rule.group_rm);
  EXPECT_EQ(judged.reward_key, "score");
  EXPECT_TRUE(judged.group_rm);
  EXPECT_EQ(by_line.custom_rm_path, judged.custom_rm_path);
  EXPECT_EQ(by_line.reward_key, "acc");
  EXPECT_FALSE(by_line.group_rm);
}

// A data set's --rm-type and --custom-rm-path are added up as in training.
TEST(EvalSets, SeveralRewardsOfASetAreAddedUp) {
  config::RewardOptions training;
  training.rm_type = {"f1"};
  const std::vector<config::EvalSet> sets = read(
      "[eval.defaults]\nrm_type = [\"math\", \"dapo\"]\nreward_weights = [1, 0.5]\n"
      "[[eval.datasets]]\nname = \"own\"\npath = \"a\"\nrm_type = \"exact\"\ncustom_rm_path = \"a.py:short\"\n"
      "reward_weights = [1, 0.25]\n"
      "[[eval.datasets]]\nname = \"function\"\npath = \"a\"\ncustom_rm_path = \"a.py:short\"\n"
      "[[eval.datasets]]\nname = \"defaults\"\npath = \"a\"\n"
      "[[eval.datasets]]\nname = \"weighted\"\npath = \"a\"\nreward_weights = [2, 3]\n");
  const std::array<const char*, 4> sums = {"rewards: 1 x exact + 0.25 x short", "", "rewards: 1 x math + 0.5 x dapo",
                                           "rewards: 2 x math + 3 x dapo"};
  for (size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sets.at(i).reward(training).sum_text(), sums[i]) << sets[i].name;
  // A table that names a reward has nothing of the defaults'.
  EXPECT_TRUE(sets.at(1).reward(training).rm_type.empty());
  EXPECT_EQ(sets.at(1).reward(training).custom_rm_path, std::vector<std::string>{"a.py:short"});
}

TEST(EvalSets, WhatIsWrongIsNamedWithItsPlace) {
  const std::string set = "[[eval.datasets]]\nname = \"a\"\npath = \"a\"\nrm_type = \"exact\"\n";
  const std::array<std::pair<std::string, std::string>, 18> cases = {{
      {"", "names no data set"},
      {"[eval.defaults]\ntop_p = 0.5\n", "names no data set"},
      {set + "temprature = 1\n", ":5:14: temprature: is no key of this table; there are: name, path, "},
      {set + "temperature = \"hot\"\n", ":5:15: temperature: expects a number"},
      {set + "temperature = -1\n", ":5:15: temperature"},
      {set + "top_p = 0\n", ":5:9: top_p"},
      {set + "top_k = 2.5\n", ":5:9: top_k: expects a whole number"},
      {set + "n_samples_per_eval_prompt = 0\n", ":5:29: n_samples_per_eval_prompt"},
      {set + "max_response_len = [1]\n", ":5:20: max_response_len: expects one value, not a list"},
      {set + "[eval.datasets.more]\n", "is a table; write name = value"},
      {set + set, ":5:1: the name a is given twice"},
      {"[[eval.datasets]]\npath = \"a\"\nrm_type = \"exact\"\n", ":1:1: name: '' is no name"},
      {"[[eval.datasets]]\nname = \"a/b\"\npath = \"a\"\n", "'a/b' is no name"},
      {"[[eval.datasets]]\nname = \"a\"\nrm_type = \"exact\"\n", ":1:1: path: is missing"},
      {set + "reward_weights = [1, 2]\n", ":1:1: --reward-weights: 2 weights given for 1 reward"},
      {"[eval.defaults]\nname = \"a\"\n" + set, ":2:8: name: is no key of this table"},
      {"[eval.dataset]\nname = \"a\"\n",
       ":1:1: dataset: is not known here; write [eval.defaults] and [[eval.datasets]]"},
      {"evals = 1\n", ":1:9: evals: is not known here"},
  }};
  for (const auto& [text, says] : cases) {
    const std::string line = refusal(text);
    EXPECT_NE(line.find(says), std::string::npos) << text << "\n" << line;
    EXPECT_NE(line.find("eval.toml"), std::string::npos) << line;
  }
  EXPECT_NE(refusal(set + "custom_rm_path = \"a.py:f\"\nreward_weights = [1, 2, 3]\n")
                .find(":1:1: --reward-weights: 3 weights given for 2 rewards (exact, f)"),
            std::string::npos);
  EXPECT_NE(refusal(set + "reward_key = \"acc\"\n").find("reward_key acc"), std::string::npos);
  EXPECT_NE(refusal("[[eval.datasets]\n").find(":1:"), std::string::npos);
}

}  // namespace
}  // namespace tandem::evaluation
