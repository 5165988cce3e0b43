// Rewards are those of the rules, and of the user's functions in each dialect.
#include "reward/graders.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "reward/reward_rules.h"
#include "tandem/error.h"
#include "tests/reward/grader_fixture.h"

namespace tandem::reward {
namespace {

struct Case {
  const char* response;
  const char* label;
  double reward;
};

void expect_rewards(const GraderConfig& config, const std::vector<Case>& cases) {
  Graders graders(config);
  std::vector<GradeRequest> requests;
  for (size_t i = 0; i < cases.size(); ++i) requests.push_back(request(i, cases[i].response, cases[i].label));
  graders.submit(requests);
  const std::vector<Grade> grades = take_all(graders);
  ASSERT_EQ(grades.size(), cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_FALSE(grades[i].failed) << cases[i].response << ": " << grades[i].reason;
    EXPECT_EQ(grades[i].reward, cases[i].reward) << cases[i].response << " for " << cases[i].label;
  }
}

TEST(Graders, ExactComparesTextWithoutOuterSpace) {
  expect_rewards(rule("exact"), {{"34", "34", 1},
                                 {" 34\n", "34", 1},
                                 {"34", " 34", 1},
                                 {"3 4", "34", 0},
                                 {"34.0", "34", 0},
                                 {"", "34", 0},
                                 {"\xC3\xA9", "\xC3\xA9", 1}});
}

// An empty label once paid exact 1 for an empty response. The readers of data refuse it; here it is no reward either.
TEST(Graders, NoBuiltInRewardPaysForAnEmptyLabel) {
  const base::Json nothing = nullptr;
  for (const RewardRule& row : kRewardRules) {
    const std::string rm_type(row.name);
    if (rm_type == "random" || rm_type == "none" || rm_type == "ifbench") continue;  // they compare with no label
    Graders graders(rule(rm_type));
    for (const base::Json& label :
         {base::Json(""), base::Json(" \n"), nothing, base::Json::array(), base::Json::object()}) {
      for (const char* response : {"", "Answer: $", "null", "[]", "\\boxed{}"}) {
        const Grade grade = grade_one(graders, request(1, response, label));
        EXPECT_TRUE(grade.failed) << rm_type << " of " << label << " for " << response;
        EXPECT_EQ(grade.reason_class, "exception");
        EXPECT_NE(grade.reason.find("which no response can be compared with"), std::string::npos) << grade.reason;
      }
    }
  }
  Graders dapo(rule("dapo"));
  EXPECT_NE(grade_one(dapo, request(1, "Answer: $", "$")).reason.find("nothing is left of the label $"),
            std::string::npos);
}

TEST(Graders, BuiltInRewardsCompareTheTextOfALabel) {
  Graders exact(rule("exact"));
  const std::vector<std::pair<base::Json, std::string>> labels = {
      {4, "4"}, {2.5, "2.5"}, {4.0, "4.0"}, {true, "true"}, {"4", "4"}};
  for (const auto& [label, response] : labels) {
    EXPECT_EQ(grade_one(exact, request(1, response, label)).reward, 1.0) << response;
  }
  Graders math(rule("math"));
  EXPECT_EQ(grade_one(math, request(1, "\\boxed{4}", 4)).reward, 1.0);
  Graders dapo(rule("dapo"));
  EXPECT_EQ(grade_one(dapo, request(1, "Answer: 34", 34.0)).reward, 1.0);
}

TEST(Graders, MathTakesTheLastBoxOrTheLastNumber) {
  expect_rewards(rule("math"), {{"so \\boxed{34}", "34", 1},
                                {"\\boxed{1}, no, \\boxed{34} of 50", "34", 1},
                                {"\\boxed{\\frac{1}{2}}", "0.5", 1},
                                {"\\boxed{\\dfrac{1}{\\sqrt{4}}}", "\\frac12", 1},
                                {"\\boxed{1+x}", "x+1", 1},
                                {"\\boxed{(1, 2)}", "(1,2)", 1},
                                {"\\fbox{7}", "\\boxed{7}", 1},
                                {"\\boxed{34", "34", 1},  // never closed: the last number
                                {"The answer is 34.", "34", 1},
                                {"1,234 it is", "1234", 1},
                                {"5-3=2", "2", 1},
                                {"10-3", "3", 1},  // a minus between numbers is no sign
                                {"it is -7", "-7", 1},
                                {"= 3/4", "0.75", 1},
                                {"007", "7", 1},
                                {"12 or 13", "12", 0},
                                {"\\boxed{33}", "34", 0},
                                {"\\boxed{}", "34", 0},
                                {"none", "34", 0},
                                {"", "34", 0},
                                {"\\boxed{\\text{yes}}", "yes", 1},
                                {"\\boxed{\\text{yes}}", "no", 0}});
}

TEST(Graders, MathThatDoesNotEndIsAFailureAndNoZero) {
  GraderConfig config = rule("math");
  Graders graders(config);
  const Grade grade = grade_one(graders, request(1, "\\boxed{9^{9^{9^{9}}}}", "3"));
  EXPECT_TRUE(grade.failed);
  EXPECT_TRUE(grade.reason_class == "deadline" || grade.reason_class == "memory") << grade.reason;
  EXPECT_EQ(grade_one(graders, request(2, "\\boxed{3}", "3")).reward, 1.0);
}

TEST(Graders, DapoScoresPlusAndMinusOne) {
  expect_rewards(rule("dapo"), {{"Work.\nAnswer: 34", "34", 1},
                                {"answer : $34$", "34", 1},
                                {"Answer: 12\nAnswer: 34", "34", 1},
                                {"Answer: x = 1,234 dollars", "1234", 1},
                                {"Answer: \\boxed{34}", "34.0", 1},
                                {"Answer: \\frac12", "\\frac{1}{2}", 1},
                                {"Answer: 34<|im_end|>", "34", 1},
                                {"Answer: 35", "34", -1},
                                {"34", "34", -1},
                                {"", "34", -1}});
  Graders graders(rule("dapo"));
  EXPECT_EQ(grade_one(graders, request(1, "Answer: 34" + std::string(300, '.'), "34")).reward,
            -1.0);  // beyond the tail
  EXPECT_EQ(grade_one(graders, request(1, "Answer: 1", "1")).extras.at("acc"), 1.0);
}

TEST(Graders, RewardKeyPicksANumber) {
  GraderConfig config = rule("dapo");
  config.reward_key = "acc";
  Graders graders(config);
  const Grade grade = grade_one(graders, request(1, "wrong", "1"));
  EXPECT_EQ(grade.reward, 0.0);
  EXPECT_EQ(grade.extras.at("score"), -1.0);
}

TEST(Graders, TakeTrlFunctions) {
  GraderConfig config = function("dialects.py:trl");
  config.label_key = "answer";
  Graders graders(config);
  EXPECT_EQ(graders.dialect(), "trl");
  GradeRequest sample = request(1, "34", "34");
  sample.metadata = {{"level", 3}};
  EXPECT_EQ(grade_one(graders, sample).reward, 2.5);
  sample.prompt = base::Json::parse(R"([{"role": "user", "content": "?"}])");  // then a completion is a message list
  EXPECT_EQ(grade_one(graders, sample).reward, 2.5);
  Graders without_kwargs(function("dialects.py:trl_without_kwargs"));
  EXPECT_EQ(grade_one(without_kwargs, request(1, "a", "a")).reward, 2.0);
  Graders with_async(function("dialects.py:trl_async"));
  EXPECT_EQ(grade_one(with_async, request(1, "a", "a")).reward, 1.0);
}

TEST(Graders, GiveTrlFunctionsWholeGroups) {
  Graders graders(function("dialects.py:trl_group"));
  graders.submit({request(1, "aa"), request(2, "aaaaa"), request(3, "a")});
  const std::vector<Grade> grades = take_all(graders);
  EXPECT_EQ(grades[0].reward, 1.0);
  EXPECT_EQ(grades[1].reward, 4.0);
  EXPECT_EQ(grades[2].reward, 0.0);
}

TEST(Graders, TakeVerlFunctions) {
  Graders graders(function("dialects.py:compute_score"));
  EXPECT_EQ(graders.dialect(), "verl");
  GradeRequest sample = request(1, "34", "34");
  sample.metadata = {{"data_source", "gsm"}, {"extra_info", {{"split", 7}}}};
  const Grade grade = grade_one(graders, sample);
  EXPECT_EQ(grade.reward, 1.0) << grade.reason;
  const std::map<std::string, double> extras = {{"length", 2.0}, {"from_gsm", 1.0}, {"split", 7.0}};
  EXPECT_EQ(grade.extras, extras);  // the infinite one is no metric
}

TEST(Graders, TakeSlimeFunctions) {
  GraderConfig config = function("dialects.py:slime");
  config.reward_key = "good";
  config.arguments = {{"rm_note", "hello"}};
  Graders graders(config);
  EXPECT_EQ(graders.dialect(), "slime");
  GradeRequest sample = request(1, "a", "a");
  sample.truncated = true;
  sample.prompt_tokens = {1, 2};
  sample.response_tokens = {7, 8, 9};
  sample.metadata = {{"metadata", {{"weight", 0.125}}}};
  EXPECT_EQ(grade_one(graders, sample).reward, 0.25);
  sample.label = "b";
  EXPECT_EQ(grade_one(graders, sample).reward, 0.125);
}

TEST(Graders, GiveSlimeFunctionsWholeGroupsWhenAsked) {
  GraderConfig config = function("dialects.py:slime_group");
  config.group_rm = true;
  Graders graders(config);
  graders.submit({request(1, "aa"), request(2, "aaa")});
  const std::vector<Grade> grades = take_all(graders);
  EXPECT_EQ(grades[0].reward, 0.0);
  EXPECT_EQ(grades[1].reward, 1.0);
}

TEST(Graders, DrawTheSameNumbersInAnyProcess) {
  for (const std::string spec : {"dialects.py:draws", "dialects.py:draws_by_numpy"}) {
    GraderConfig config = function(spec);
    std::vector<std::vector<double>> runs;
    for (const int num_processes : {1, 3}) {
      config.limits.num_processes = num_processes;
      Graders graders(config);
      std::vector<double> rewards;
      for (uint64_t i = 0; i < 20; ++i) graders.submit({request(i, "x")});
      for (const Grade& grade : take_all(graders)) rewards.push_back(grade.failed ? -1.0 : grade.reward);
      runs.push_back(rewards);
    }
    EXPECT_EQ(runs[0], runs[1]) << spec;
    EXPECT_GE(runs[0][0], 0.0) << spec << " failed";
  }
}

// `assert sum(10, 15) == 6` once asked Python's own function, whatever the program was.
TEST(Graders, ATestMayAskForAFunctionNamedLikeOneOfPythons) {
  struct Program {
    const char* test;
    const char* source;
    double reward;
  };
  Graders graders(rule("code"));
  for (const Program& program : {Program{"assert max([1, 2]) == 2", "def max(numbers): return 2", 1.0},
                                 Program{"assert max([1, 2]) == 2", "def max(numbers): return 1", 0.0},
                                 Program{"assert max([1, 2]) == 2", "x = 1", 0.0},
                                 Program{"assert len(max('a')) == 1", "def len(x): return 1", 0.0},
                                 Program{"assert abs(f(2) - 1) < 0.1", "def f(x): return 9\ndef abs(x): return 0", 0.0},
                                 Program{"assert abs(f(2) - 1) < 0.1", "def f(x): return 1.0", 1.0}}) {
    const std::string response = std::string("```python\n") + program.source + "\n```";
    const Grade grade = grade_one(graders, request(1, response, base::Json::array({program.test})));
    EXPECT_FALSE(grade.failed) << grade.reason;
    EXPECT_EQ(grade.reward, program.reward) << program.test << " of " << program.source;
  }
}

// Such a test once waited for ever, and the sample failed with class deadline instead of having reward 0.
TEST(Graders, ATestThatCatchesEverythingEndsWithItsTime) {
  Graders graders(rule("code"));
  const std::string response = "```python\nimport time\ndef f(): time.sleep(1000)\n```";
  for (const char* test : {"while True:\n    try:\n        f()\n    except:\n        pass\n",
                           "try:\n    f()\nexcept Exception:\n    f()\n"}) {
    GradeRequest hangs = request(1, response, base::Json::array({test}));
    hangs.metadata = {{"time_limit", 1}};
    const Grade grade = grade_one(graders, hangs);
    EXPECT_FALSE(grade.failed) << grade.reason;
    EXPECT_EQ(grade.reward, 0.0) << test;
  }
}

TEST(Graders, RefuseWhatCannotGrade) {
  EXPECT_THROW(Graders(rule("")), BugError) << "the options ask for one";
  EXPECT_THROW(Graders(rule("exactly")), BugError) << "the options name those that there are";
  EXPECT_NE(refusal(function("dialects.py")).find("FILE.py:FUNCTION"), std::string::npos);
  EXPECT_NE(refusal(function("nowhere.py:f")).find("is no file"), std::string::npos);
  EXPECT_NE(refusal(function("dialects.py:missing")).find("its functions: compute_score"), std::string::npos);
  EXPECT_NE(refusal(function("dialects.py:not_callable")).find("is an int, not a function"), std::string::npos);
  EXPECT_NE(refusal(function("dialects.py:two_marks")).find("looks like trl and verl at once"), std::string::npos);
  EXPECT_NE(refusal(function("dialects.py:no_marks")).find("(a, b) is none of the known kinds"), std::string::npos);
  EXPECT_NE(refusal(function("broken.py:f")).find("RuntimeError: broken at import (broken.py:1)"), std::string::npos);
  EXPECT_NE(refusal(function("no_python.py:f")).find("SyntaxError"), std::string::npos);
  GraderConfig group = function("dialects.py:compute_score");
  group.group_rm = true;
  EXPECT_NE(refusal(group).find("leave out --group-rm"), std::string::npos);
}

}  // namespace
}  // namespace tandem::reward
