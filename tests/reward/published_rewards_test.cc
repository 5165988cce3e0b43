// Every example of TRL's, verl's and slime's pages on rewards runs as it is: a row for each.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "tandem/error.h"
#include "tests/reward/grader_fixture.h"

namespace tandem::reward {
namespace {

struct Row {
  const char* spec;
  const char* samples;           // of one group: "response" and, where it is not the same for all, the rest
  std::vector<double> rewards;   // where none failed
  const char* failed_with = "";  // the class of the last sample, which then has no reward
};

const std::vector<Row> kTrl = {
    {"by_tokens", R"([{"tokens": [6303, 13]}, {"tokens": [304, 279, 12884, 13]}])", {1, 2}},
    {"by_characters", R"([{"response": " blue."}, {"response": " in the sky."}])", {3, 6}},
    {"of_a_format",
     R"([{"prompt": [{"role": "user", "content": "?"}], "response": "<think>a</think><answer>b</answer>"},
         {"prompt": [{"role": "user", "content": "?"}], "response": "b"}])",
     {1, 0}},
    {"of_a_reference",
     R"([{"response": "It is \\boxed{2}.", "metadata": {"ground_truth": "2"}},
         {"response": "It is \\boxed{6}.", "metadata": {"ground_truth": "5"}}])",
     {1, 0}},
    {"of_one_task",
     R"([{"prompt": "2+2=4", "response": "4", "metadata": {"task": "math"}},
         {"prompt": "2+2=4", "response": "5", "metadata": {"task": "math"}}])",
     {1, -1}},
    {"of_one_task",
     R"([{"response": "4", "metadata": {"task": "math"}},
         {"response": "4", "metadata": {"task": "code"}}])",
     {-1},
     "none"},
    {"after_a_wait", R"([{"response": "a"}, {"response": ""}])", {1, 0}},
    {"with_logs",
     R"([{"response": "\\boxed{2}", "metadata": {"ground_truth": "2"}},
         {"response": "2", "metadata": {"ground_truth": "2"}}])",
     {1, 0}},
    {"accuracy",
     R"([{"prompt": [{"role": "user", "content": "?"}], "response": "2", "metadata": {"solution": "2"}},
         {"prompt": [{"role": "user", "content": "?"}], "response": "2", "metadata": {"solution": "?"}}])",
     {1},
     "none"},
    {"reasoning_accuracy",
     R"([{"prompt": [{"role": "user", "content": "?"}], "response": "a</think>2", "metadata": {"solution": "2"}}])",
     {1}},
    {"cosine",
     R"([{"tokens": [], "metadata": {"solution": "2"}},
         {"tokens": [1, 2, 3, 4, 5], "metadata": {"solution": "2"}}])",
     {1, -1}},
    {"repetition", R"([{"tokens": [1, 2]}, {"tokens": [1, 1]}])", {0, -0.5}},
    {"of_prompts", R"([{"prompt": "ab"}, {"prompt": "ab"}])", {2, 2}},
    {"of_metadata", R"([{"metadata": {"metadata": {"weight": 0.5}, "weight": 0.5}}])", {0.5}},
    {"of_metadata", R"([{"metadata": {"weight": 0.25}}])", {0.25}},  // without a column of that name: all columns
    {"centred", R"([{"response": "a"}, {"response": "aaa"}, {"response": "aa"}])", {-1, 1, 0}},
    {"of_truncated", R"([{"truncated": true}, {"truncated": false}])", {-1, 1}},
    {"of_truncated", R"([{"truncated": true, "metadata": {"truncated": false}}])", {1}},  // the data's own column
};

const std::vector<Row> kVerl = {
    {"my_reward_fn", R"([{"response": "abcde"}])", {0.05}},
    {"compute_score", R"([{"response": "so #### 72", "metadata": {"reward_model": {"ground_truth": "72"}}}])", {1}},
    {"compute_score",
     R"([{"response": "so #### 72", "label": "71",
        "metadata": {"reward_model": {"ground_truth": "72"}}}])",
     {0}},  // a label is taken before
    {"default_compute_score",
     R"([{"response": "#### 3", "label": "3", "metadata": {"data_source": "openai/gsm8k"}}])",
     {1}},
    {"default_compute_score", R"([{"response": "3", "label": "4", "metadata": {"data_source": "aime2024"}}])", {-1}},
    {"default_compute_score", R"([{"response": "3", "metadata": {"data_source": "other"}}])", {}, "exception"},
    {"compute_score_batched", R"([{"response": "3", "label": "3"}, {"response": "4", "label": "3"}])", {1, 0}},
    {"toolcall_shaping", R"([{"response": "<tool_call> #### 3", "label": "3"}])", {1.25}},
    {"judged", R"([{"metadata": {"extra_info": {"question": "abc"}}}])", {3}},
    {"of_extra_info", R"([{"metadata": {"extra_info": {"split": "train", "index": 7}}}])", {7}},
    {"of_reward_model", R"([{"response": "72", "label": {"style": "rule", "ground_truth": "72"}}])", {1}},
};

const std::vector<Row> kSlime = {
    {"custom_rm", R"([{"response": "4", "label": "4"}])", {1}},
    {"reward_func", R"([{"metadata": {"metadata": {"session_id": 1}}}])", {1.5}},
    {"of_a_dict_label", R"([{"response": "4", "label": {"ground_truth": "prompt>4"}}])", {1}},
    {"of_a_dict", "[{}]", {1}},
    {"of_metadata", R"([{"metadata": {"rm_type": "boxed_math"}}])", {1}},
    {"of_metadata", R"([{"metadata": {}}])", {}, "exception"},
    {"overlong_filter", R"([{"truncated": true}])", {1}},
};

std::vector<GradeRequest> requests_of(const char* text) {
  std::vector<GradeRequest> requests;
  for (const base::Json& sample : base::parse_json(text, "samples")) {
    GradeRequest one = request(requests.size(), sample.value("response", ""));
    one.prompt = sample.value("prompt", base::Json("a prompt"));
    one.label = sample.value("label", base::Json(nullptr));
    one.metadata = sample.value("metadata", base::Json::object());
    one.response_tokens = sample.value("tokens", std::vector<int32_t>{1});
    one.truncated = sample.value("truncated", false);
    requests.push_back(one);
  }
  return requests;
}

void expect_row(const GraderConfig& config, const std::string& dialect, const Row& row) {
  SCOPED_TRACE(std::string(row.spec) + " " + row.samples);
  Graders graders(config);
  EXPECT_EQ(graders.dialect(), dialect);
  graders.submit(requests_of(row.samples));
  const std::vector<Grade> grades = take_all(graders);
  const bool one_failed = *row.failed_with != '\0';
  ASSERT_EQ(grades.size(), row.rewards.size() + (one_failed ? 1 : 0));
  for (size_t i = 0; i < row.rewards.size(); ++i) {
    EXPECT_FALSE(grades[i].failed) << grades[i].reason;
    EXPECT_EQ(grades[i].reward, row.rewards[i]);
  }
  if (one_failed) {
    EXPECT_EQ(grades.back().reason_class, row.failed_with) << grades.back().reason;
  }
}

TEST(PublishedRewards, OfTrl) {
  for (const Row& row : kTrl) expect_row(function("published_trl.py:" + std::string(row.spec)), "trl", row);
}

TEST(PublishedRewards, OfVerl) {
  for (const Row& row : kVerl) expect_row(function("published_verl.py:" + std::string(row.spec)), "verl", row);
}

TEST(PublishedRewards, OfSlime) {
  for (const Row& row : kSlime) {
    GraderConfig config = function("published_slime.py:" + std::string(row.spec));
    config.arguments = {{"rm-type", nullptr}};
    expect_row(config, "slime", row);
  }
  GraderConfig group = function("published_slime.py:batched_custom_rm");
  group.group_rm = true;
  expect_row(group, "slime", {"batched_custom_rm", "[{}, {}]", {0, 2}});
  GraderConfig keyed = function("published_slime.py:synchronous");
  keyed.reward_key = "my_key";
  keyed.arguments = {{"reward-key", ""}};
  expect_row(keyed, "slime", {"synchronous", "[{}]", {0.75}});
}

TEST(PublishedRewards, ThatNeedAServedModelAreRefusedAtOnce) {
  try {
    Graders graders(function("published_verl.py:served"));
    FAIL() << "was not refused";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("nothing to give for the parameter reward_router_address"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tandem::reward
