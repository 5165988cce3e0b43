// Tests that --load-debug-rollout-data takes what --save-debug-rollout-data writes, and no line with a mistake in it.
#include "sampling/rollout_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "evaluation/rollout_metrics.h"
#include "report/sample_file.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"

namespace tandem::sampling {
namespace {

using base::Json;

constexpr RolloutBounds kBounds = {.num_samples = 4, .vocab = 100, .context_tokens = 8};

// Two groups of two samples; the last one failed.
Rollout four_samples() {
  Rollout rollout;
  rollout.samples.resize(4);
  rollout.grades.resize(4);
  for (size_t i = 0; i < 4; ++i) {
    rl::Sample& sample = rollout.samples[i];
    sample.group_id = 7 + i / 2;
    sample.sample_id = 14 + i;
    sample.prompt = i % 2 == 0 ? rl::make_prompt({1, 2, static_cast<int32_t>(i / 2)}, "1 + 1 =", "2")
                               : rollout.samples[i - 1].prompt;
    sample.completion = {4, 99};
    sample.rollout_logprobs = {-1.0F, -2.5F};
    sample.behavior_logprobs = {-0.5F, -2.0F};
    sample.loss_mask = {1, 0};
    sample.advantages = {0.5};
    sample.reward = static_cast<double>(i);
    sample.text = "2\n";
    sample.versions = {{.begin = 0, .version = 3}};
    if (i == 2) sample.versions.push_back({.begin = 1, .version = 4});
    rollout.grades[i].sample_id = sample.sample_id;
    rollout.grades[i].reward = sample.reward;
    rollout.grades[i].extras["acc"] = 1.0;
  }
  rl::Sample& failed = rollout.samples[3];
  failed.grading_failed = true;
  failed.has_reward = false;
  failed.reward = 0.0;
  rollout.grades[3].failed = true;
  rollout.grades[3].reason = "ValueError: no";
  rollout.grades[3].reason_class = "exception";
  rollout.count_failures();
  return rollout;
}

std::vector<Json> lines_of(const std::string& path) {
  std::vector<Json> lines;
  const std::string text = base::read_file(path);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(base::parse_json(std::string_view(text).substr(begin, end - begin), path));
    begin = end + 1;
  }
  return lines;
}

void write_lines(const std::string& path, const std::vector<Json>& lines) {
  std::string text;
  for (const Json& line : lines) text += base::dump_json(line) + "\n";
  base::write_file_durably(path, text);
}

class RolloutFile : public testing::Test {
 protected:
  void SetUp() override {
    const Rollout rollout = four_samples();
    report::write_samples(path_, rollout.samples, rollout.grades, report::SampleDetail::kFull);
  }

  // Returns the error about the file, or "" if it is taken.
  std::string mistake() const {
    return base::thrown_by([&] { read_rollout(path_, kBounds); });
  }

  base::TemporaryDirectory folder_;
  const std::string path_ = folder_ / "0.jsonl";
};

TEST_F(RolloutFile, IsReadBackAsItWasWritten) {
  const Rollout read = read_rollout(path_, kBounds), wrote = four_samples();
  ASSERT_EQ(read.samples.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    const rl::Sample &a = read.samples[i], &b = wrote.samples[i];
    EXPECT_EQ(a.prompt->tokens, b.prompt->tokens);
    EXPECT_EQ(a.prompt->text, b.prompt->text);
    EXPECT_EQ(a.prompt->label, b.prompt->label);
    EXPECT_EQ(a.prompt, read.samples[i / 2 * 2].prompt) << "one object for a group";
    EXPECT_EQ(a.completion, b.completion);
    EXPECT_EQ(a.rollout_logprobs, b.rollout_logprobs);
    EXPECT_EQ(a.behavior_logprobs, b.behavior_logprobs);
    EXPECT_EQ(a.loss_mask, b.loss_mask);
    EXPECT_EQ(a.reward, b.reward);
    EXPECT_EQ(a.has_reward, b.has_reward);
    EXPECT_EQ(a.group_id, b.group_id);
    EXPECT_EQ(a.sample_id, b.sample_id);
    EXPECT_EQ(read.grades[i].extras, wrote.grades[i].extras);
  }
  EXPECT_NE(read.samples[0].prompt, read.samples[2].prompt);
  EXPECT_EQ(read.num_failed, 1);
}

// 39 such files were tried once: 19 ended as "a bug in Tandem", and 2.7, {"a": 1} and a mask of 300 were taken.
TEST_F(RolloutFile, EveryMistakeIsNamedWithItsPlace) {
  struct Case {
    std::string key;  // whose column is told
    std::string says;
    std::function<void(Json&)> spoil;  // the second line
  };
  const auto with = [](const std::string& key, const Json& value) {
    return [key, value](Json& line) { line[key] = value; };
  };
  const auto without = [](const std::string& key) { return [key](Json& line) { line.erase(key); }; };
  const std::string no_token = "is no token id of this model; ids are 0 to 99";
  std::vector<Case> cases = {
      // Tokens.
      {"response_tokens", "100 " + no_token, with("response_tokens", {4, 100})},
      {"response_tokens", "-1 " + no_token, with("response_tokens", {4, -1})},
      {"response_tokens", "2.7 " + no_token, with("response_tokens", {4, 2.7})},
      {"response_tokens", "4.0 " + no_token, with("response_tokens", {4.0, 4})},
      {"response_tokens", "\"4\" " + no_token, with("response_tokens", {"4", 4})},
      {"response_tokens", "true " + no_token, with("response_tokens", {true, 4})},
      {"response_tokens", "null " + no_token, with("response_tokens", {nullptr, 4})},
      {"response_tokens", "[4] " + no_token, with("response_tokens", Json::array({Json::array({4}), 4}))},
      {"response_tokens", "4294967300 " + no_token, with("response_tokens", {4, int64_t{4294967300}})},
      {"response_tokens", "9223372036854775807 " + no_token, with("response_tokens", {4, INT64_MAX})},
      {"response_tokens", "18446744073709551615 " + no_token, with("response_tokens", {4, UINT64_MAX})},
      {"response_tokens", "must be a list, not \"abc\"", with("response_tokens", "abc")},
      {"response_tokens", "must be a list, not {\"a\":1}", with("response_tokens", {{"a", 1}})},
      {"response_tokens", "must be a list, not 4", with("response_tokens", 4)},
      {"response_tokens", "is empty", with("response_tokens", Json::array())},
      {"prompt_tokens", "is empty", with("prompt_tokens", Json::array())},
      {"prompt_tokens", "100 " + no_token, with("prompt_tokens", {1, 2, 100})},
      {"prompt_tokens", "must be a list, not null", with("prompt_tokens", nullptr)},
      {"prompt_tokens", "are others than in line 1, which has the same group_id 7", with("prompt_tokens", {1, 2, 5})},
      {"response_tokens", "prompt and response are 9 tokens, and sequences of this run have at most 8",
       with("prompt_tokens", {1, 2, 3, 4, 5, 6, 7})},
      // Lists beside them.
      {"rollout_log_probs", "has 1 numbers for the 2 of response_tokens", with("rollout_log_probs", {-1.0})},
      {"rollout_log_probs", "has 3 numbers", with("rollout_log_probs", {-1.0, -1.0, -1.0})},
      {"rollout_log_probs", "has 0 numbers", with("rollout_log_probs", Json::array())},
      {"rollout_log_probs", "must be a finite number, not \"nan\"", with("rollout_log_probs", {-1.0, "nan"})},
      {"rollout_log_probs", "must be a finite number, not \"-inf\"", with("rollout_log_probs", {-1.0, "-inf"})},
      {"rollout_log_probs", "must be a finite number, not -1e+300", with("rollout_log_probs", {-1.0, -1e300})},
      {"rollout_log_probs", "must be a finite number, not null", with("rollout_log_probs", {-1.0, nullptr})},
      {"rollout_log_probs", "must be a list", with("rollout_log_probs", -1.0)},
      {"sampled_log_probs", "has 1 numbers", with("sampled_log_probs", {-1.0})},
      {"sampled_log_probs", "must be a finite number, not \"inf\"", with("sampled_log_probs", {"inf", -1.0})},
      {"loss_mask", "has 1 numbers", with("loss_mask", {1})},
      {"loss_mask", "must hold 0 and 1, not 300", with("loss_mask", {1, 300})},
      {"loss_mask", "must hold 0 and 1, not 2", with("loss_mask", {2, 1})},
      {"loss_mask", "must hold 0 and 1, not -1", with("loss_mask", {-1, 1})},
      {"loss_mask", "must hold 0 and 1, not 0.5", with("loss_mask", {0.5, 1})},
      {"loss_mask", "must hold 0 and 1, not true", with("loss_mask", {true, 1})},
      // Rewards.
      {"reward", "must be a finite number, not \"nan\"", with("reward", "nan")},
      {"reward", "must be a finite number, not \"inf\"", with("reward", "inf")},
      {"reward", "must be a finite number, not \"high\"", with("reward", "high")},
      {"reward", "must be a finite number, not [1.0]", with("reward", Json::array({1.0}))},
      {"reward", "must be a finite number, not true", with("reward", true)},
      {"reward", "is null, and no failure says why", with("reward", nullptr)},
      {"reward_acc", "must be a finite number, not \"nan\"", with("reward_acc", "nan")},
      {"reward_acc", "must be a finite number, not {}", with("reward_acc", Json::object())},
      {"rewards", "must be an object of numbers, not 3", with("rewards", 3)},
      {"math", "must be a finite number, not \"one\"", with("rewards", Json::object({{"math", "one"}}))},
      {"failure", "must be a text, not 1", with("failure", 1)},
      {"failure_class", "is missing", with("failure", "it failed")},
      {"failure_class", "must be a word such as exception, not \"a/b\"",
       [](Json& line) { line["failure"] = "it", line["failure_class"] = "a/b"; }},
      {"failure_class", "must be a word such as exception, not \"\"",
       [](Json& line) { line["failure"] = "it", line["failure_class"] = ""; }},
      // The rest of a sample.
      {"group_id", "must be a whole number of 0 or more, below 2^63, not -7", with("group_id", -7)},
      {"group_id", "must be a whole number of 0 or more, below 2^63, not 7.5", with("group_id", 7.5)},
      {"sample_id", "must be a whole number of 0 or more, below 2^63, not 18446744073709551615",
       with("sample_id", UINT64_MAX)},
      {"sample_id", "must be a whole number of 0 or more, below 2^63, not \"15\"", with("sample_id", "15")},
      {"sample_id", "14 is that of an earlier line too", with("sample_id", 14)},
      {"status", "failed is none: use completed, truncated or aborted", with("status", "failed")},
      {"status", "must be a text, not 1", with("status", 1)},
      {"remove_sample", "must be true or false, not 1", with("remove_sample", 1)},
      {"weight_versions", "must be a list, not 3", with("weight_versions", 3)},
      {"weight_versions", "must be a whole number of 0 or more, below 2^63, not -3", with("weight_versions", {-3})},
      {"weight_version_begins", "is missing", with("weight_versions", {3, 4})},
      {"weight_version_begins", "must be 0 and then larger numbers below 2, not [0,2]",
       [](Json& line) {
         line["weight_versions"] = {3, 4}, line["weight_version_begins"] = {0, 2};
       }},
      {"weight_version_begins", "has 1 numbers for the 2 of weight_versions",
       [](Json& line) {
         line["weight_versions"] = {3, 4}, line["weight_version_begins"] = Json::array({0});
       }},
      {"prompt", "must be a text, not 5", with("prompt", 5)},
      {"response", "must be a text, not null", with("response", nullptr)},
      {"label", "must be a text, not [\"2\"]", with("label", Json::array({"2"}))},
  };
  for (const char* key : {"group_id", "sample_id", "prompt", "response", "label", "reward", "status", "prompt_tokens",
                          "response_tokens", "rollout_log_probs", "loss_mask", "remove_sample", "weight_versions"}) {
    cases.push_back(
        {"", std::string(key) + ": is missing; write the file with --save-debug-rollout-data", without(key)});
  }
  const std::vector<Json> good = lines_of(path_);
  for (const Case& one : cases) {
    SCOPED_TRACE(one.key + " " + one.says);
    std::vector<Json> lines = good;
    one.spoil(lines[1]);
    write_lines(path_, lines);
    const std::string text = base::dump_json(lines[1]);
    const size_t at = one.key.empty() ? std::string::npos : text.find("\"" + one.key + "\"");
    const std::string place = path_ + ":2:" + std::to_string(at == std::string::npos ? 1 : at + 1) + ": " +
                              (one.key.empty() ? "" : one.key + ": ");
    const std::string said = mistake();
    EXPECT_EQ(said.find(place), 0U) << said;
    EXPECT_NE(said.find(one.says), std::string::npos) << said;
    EXPECT_EQ(said.find('\n'), std::string::npos) << said;
  }
  EXPECT_GE(cases.size(), 39U);
}

TEST_F(RolloutFile, EveryMistakeOfTheWholeFileIsNamed) {
  const std::vector<Json> good = lines_of(path_);
  write_lines(path_, {good[0], good[1], good[2]});
  EXPECT_NE(mistake().find("has 3 samples, and a rollout of this run has 4"), std::string::npos);
  base::write_file_durably(path_, "");
  EXPECT_NE(mistake().find("has 0 samples"), std::string::npos);
  for (const std::string text : {"[]\n", "5\n", "\"abc\"\n", "null\n", "\n", "{\n", "{\"a\": 1}{}\n", "\xff\n",
                                 "{\"reward\": NaN}\n", "{\"reward\": 1, \"reward\": 2}\n", "{\"reward\": 1e999}\n"}) {
    base::write_file_durably(path_, text);
    const std::string said = mistake();
    EXPECT_EQ(said.find(path_ + ":1:"), 0U) << text << said;
  }
}

// Each name opens a series of metrics, whoever wrote the file.
TEST_F(RolloutFile, NamesOfNumbersAreBounded) {
  std::vector<Json> lines = lines_of(path_);
  for (size_t i = 0; i < lines.size(); ++i) {
    for (int k = 0; k < 200; ++k) lines[i]["reward_" + std::to_string(i) + "_" + std::to_string(k)] = 1.0;
  }
  write_lines(path_, lines);
  const Rollout rollout = read_rollout(path_, kBounds);
  const report::Metrics metrics = evaluation::rollout_report(rollout, false, std::nullopt);
  int64_t num_names = 0;
  for (const auto& [name, value] : metrics) num_names += name.starts_with("rollout/reward_") ? 1 : 0;
  EXPECT_EQ(num_names, static_cast<int64_t>(kMaxRewardNames));
  EXPECT_EQ(metrics.at("fault/reward_names"), 4 * 201 - 3 - 256) << "acc is one name four times";
}

}  // namespace
}  // namespace tandem::sampling
