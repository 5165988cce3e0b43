// Rewards that are added up, rewards that lines ask for, and those that a service computes.
#include "reward/scorer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "tandem/error.h"
#include "tests/reward/grader_fixture.h"
#include "tests/reward/reward_service.h"

namespace tandem::reward {
namespace {

RewardSource source(const std::string& name, double weight, const GraderConfig& graders) {
  RewardSource result;
  result.name = name;
  result.weight = weight;
  result.graders = graders;
  return result;
}

std::vector<Grade> scored(Scorer& scorer, std::vector<GradeRequest> group) {
  scorer.submit(std::move(group));
  return take_all(scorer);
}

std::string parts_text(const Grade& grade) {
  std::string text;
  for (const RewardPart& part : grade.parts) {
    text += part.name + "=" + (part.reward ? fmt::format("{:g}", *part.reward) : "none") + " ";
  }
  return text;
}

// TRL's published example of several rewards, of which one applies to math and the other to code, and a slime and a
// verl function beside them.
TEST(Scorer, AddsUpWhatAppliesWhateverTheDialect) {
  ScorerConfig config;
  config.shows_parts = true;
  config.sources = {source("math", 1.0, function("several.py:math_reward_func")),
                    source("coding", 2.0, function("several.py:coding_reward_func")),
                    source("slime", 0.5, function("several.py:by_slime")),
                    source("verl", -1.0, function("several.py:by_verl")), source("exact", 10.0, rule("exact"))};
  Scorer scorer(config);
  testing::internal::CaptureStderr();
  std::vector<GradeRequest> group;
  for (const char* task : {"math", "coding", "other"}) {
    group.push_back(request(group.size(), "ab", "ab"));
    group.back().metadata = {{"task", task}};
    group.back().response_tokens = {1, 2, 3};
  }
  const std::vector<Grade> grades = scored(scorer, group);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");  // that one of several does not apply is no news
  ASSERT_EQ(grades.size(), 3U);
  EXPECT_EQ(parts_text(grades[0]), "math=1 coding=none slime=4 verl=2 exact=1 ");
  EXPECT_EQ(grades[0].reward, 1.0 + 0.5 * 4.0 - 2.0 + 10.0);
  EXPECT_EQ(parts_text(grades[1]), "math=none coding=-1 slime=4 verl=2 exact=1 ");
  EXPECT_EQ(grades[1].reward, -2.0 + 0.5 * 4.0 - 2.0 + 10.0);
  EXPECT_EQ(parts_text(grades[2]), "math=none coding=none slime=4 verl=2 exact=1 ");
  for (const Grade& grade : grades) {
    EXPECT_FALSE(grade.failed) << grade.reason;
    EXPECT_EQ(grade.extras.at("verl/length"), 2.0);
    EXPECT_EQ(grade.columns.at("coding/task"), group[grade.sample_id].metadata["task"]);
    EXPECT_EQ(grade.remove_sample, true);
  }
  EXPECT_EQ(grades[0].metrics.at("coding/called"), std::vector<double>{1.0});
}

TEST(Scorer, ASampleFailsAsThePartThatFailedAndIsNamedForIt) {
  ScorerConfig config;
  config.shows_parts = true;
  config.sources = {source("exact", 1.0, rule("exact")), source("fails", 1.0, function("several.py:fails"))};
  Scorer scorer(config);
  const std::vector<Grade> grades =
      scored(scorer, {request(7, "a", "a"), request(8, "raise", "a"), request(9, "nan", "a")});
  EXPECT_EQ(grades[0].reward, 2.0) << grades[0].reason;
  EXPECT_TRUE(grades[1].failed);
  EXPECT_EQ(grades[1].reason_class, "exception");
  EXPECT_EQ(grades[1].reason.find("fails: ValueError: asked for"), 0U) << grades[1].reason;
  EXPECT_EQ(parts_text(grades[1]), "exact=0 fails=none ");
  EXPECT_EQ(grades[1].reward, 0.0);
  EXPECT_EQ(grades[2].reason_class, "not_finite");
}

TEST(Scorer, WhereNothingAppliesThereIsNoReward) {
  ScorerConfig config;
  config.shows_parts = true;
  config.sources = {source("math", 1.0, function("several.py:math_reward_func")),
                    source("coding", 1.0, function("several.py:coding_reward_func"))};
  Scorer scorer(config);
  GradeRequest sample = request(1, "x", "y");
  sample.metadata = {{"task", "other"}};
  const Grade grade = scored(scorer, {sample}).at(0);
  EXPECT_TRUE(grade.failed && grade.gives_none());
  EXPECT_EQ(grade.reason_class, "none");
}

TEST(Scorer, MasksAndRemovalsOfSeveralFunctionsHoldTogether) {
  ScorerConfig config;
  config.shows_parts = true;
  config.sources = {source("a", 1.0, function("published_slime.py:writes")),
                    source("b", 1.0, function("several.py:masks_first"))};
  Scorer scorer(config);
  GradeRequest sample = request(1, "sample.loss_mask = [1, 1, 0]; sample.status = Status.ABORTED");
  sample.response_tokens = {7, 8, 9};
  const Grade grade = scored(scorer, {sample}).at(0);
  EXPECT_FALSE(grade.failed) << grade.reason;
  EXPECT_EQ(grade.loss_mask, (std::vector<uint8_t>{0, 1, 0}));
  EXPECT_EQ(grade.status, "aborted");
}

TEST(Scorer, OneRewardIsLeftAsItIs) {
  ScorerConfig config;
  config.sources = {source("dapo", 1.0, rule("dapo"))};
  Scorer scorer(config);
  Graders graders(rule("dapo"));
  const GradeRequest sample = request(5, "Answer: 4", "4");
  const Grade grade = scored(scorer, {sample}).at(0), same = grade_one(graders, sample);
  EXPECT_EQ(grade.reward, same.reward);
  EXPECT_EQ(grade.extras, same.extras);
  EXPECT_TRUE(grade.parts.empty());
}

TEST(Scorer, LinesAskForTheirOwnRule) {
  ScorerConfig config;
  GraderConfig rules = rule("exact");
  rules.rm_types = {"exact", "f1", "boxed_gpqa"};
  config.sources = {source("exact", 1.0, rules)};
  Scorer scorer(config);
  std::vector<GradeRequest> group = {request(0, "the cat sat", "cat sat"), request(1, "the cat sat", "cat sat"),
                                     request(2, "\\boxed{B} A", "B")};
  group[1].rm_type = "f1";
  group[2].rm_type = "boxed_gpqa";
  const std::vector<Grade> grades = scored(scorer, group);
  EXPECT_EQ(grades[0].reward, 0.0);
  EXPECT_EQ(grades[1].reward, 1.0);
  EXPECT_EQ(grades[2].reward, 1.0) << grades[2].reason;
}

// ------------------------------------------------------------------------------------------------ a service

GraderConfig served(const std::string& url, double deadline_s = 20.0, int64_t max_retries = 3) {
  GraderConfig config = rule("");
  config.service = RewardService{.url = url, .token = "", .max_retries = max_retries};
  config.limits.deadline_s = deadline_s;
  return config;
}

class ServedReward : public testing::Test {
 protected:
  ServiceProcess service_{worker::default_worker_config().python};
};

TEST_F(ServedReward, IsWhatTheServiceAnswersOrAFailureThatSaysWhatHappened) {
  struct Row {
    const char* asks;
    double reward;
    const char* failed_with;
    const char* says;
  };
  const std::vector<Row> rows = {
      {"plus 2.5", 2.5, "", ""},
      {"plus -1", -1, "", ""},
      {"dict 3", 3, "", ""},
      {"label", 1, "", ""},
      {"prompt", 1, "", ""},
      {"token", 1, "", ""},
      {"twice a", 1, "", ""},
      {"status 404", 0, "http", "answered 'why not' with HTTP status 404"},
      {"status 302", 0, "http", "HTTP status 302; redirects are not followed"},
      {"status 201", 0, "http", "HTTP status 201"},
      {"status 500", 0, "service", "gave no answer in 4 attempts; the last: HTTP status 500"},
      {"status 429", 0, "service", "the last: HTTP status 429"},
      {"close", 0, "service", "the last: the connection was closed before the answer was there"},
      {"reset", 0, "service", "gave no answer in 4 attempts"},
      {"huge", 0, "wrong_type", "answered with more than 1048576 bytes"},
      {"nonsense", 0, "wrong_type", "which is not JSON; it must be a number"},
      {"bytes", 0, "wrong_type", "which is not JSON"},
      {"list", 0, "wrong_type", "which is not JSON"},
      {"text", 0, "wrong_type", "the reward is a str, not a number"},
      {"nan", 0, "not_finite", "the reward is nan"},
  };
  GraderConfig config = served(service_.url());
  config.service->token = "a-token-of-ours";
  Graders graders(config);
  EXPECT_EQ(graders.dialect(), "served");
  std::vector<GradeRequest> requests;
  for (const Row& row : rows) requests.push_back(request(requests.size(), row.asks, {1, "x"}));
  graders.submit(requests);
  const std::vector<Grade> grades = take_all(graders);
  for (size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(rows[i].asks);
    EXPECT_EQ(grades[i].reason_class, rows[i].failed_with) << grades[i].reason;
    EXPECT_EQ(grades[i].reward, rows[i].reward);
    EXPECT_NE(grades[i].reason.find(rows[i].says), std::string::npos) << grades[i].reason;
    EXPECT_EQ(grades[i].reason.find("a-secret"), std::string::npos) << grades[i].reason;
    EXPECT_EQ(grades[i].reason.find("a-token"), std::string::npos) << grades[i].reason;
  }
  EXPECT_EQ(grades[2].extras.at("length"), 6.0);
  EXPECT_EQ(grade_one(graders, request(90, "count twice")).reward, 3.0);    // two that failed, and one
  EXPECT_EQ(grade_one(graders, request(91, "count status")).reward, 11.0);  // 4xx and 3xx are asked once
}

TEST_F(ServedReward, HasManyRequestsUnderWayOverConnectionsThatAreKept) {
  Graders graders(served(service_.url()));
  const auto graded_in = [&](int count, const std::string& asks) {
    const base::Clock::time_point begin = base::Clock::now();
    std::vector<GradeRequest> requests;
    for (int i = 0; i < count; ++i) requests.push_back(request(static_cast<uint64_t>(i), asks));
    graders.submit(requests);
    for (const Grade& grade : take_all(graders)) EXPECT_EQ(grade.reward, 1.0) << grade.reason;
    return base::seconds_since(begin);
  };
  EXPECT_LT(graded_in(60, "slow 0.5"), 15.0);  // one after the other: 30 s
  graded_in(60, "plus 1");
  EXPECT_LE(grade_one(graders, request(99, "connections")).reward, 64.0);
}

TEST_F(ServedReward, ThatNeverAnswersIsGivenUpAtTheDeadlineAndCostsNoOther) {
  Graders graders(served(service_.url(), 1.5));
  graders.submit({request(0, "never"), request(1, "plus 1"), request(2, "drip"), request(3, "slow 0.2")});
  const base::Clock::time_point begin = base::Clock::now();
  const std::vector<Grade> grades = take_all(graders);
  EXPECT_LT(base::seconds_since(begin), 20.0);
  EXPECT_EQ(grades[0].reason_class, "deadline");
  EXPECT_EQ(grades[1].reward, 1.0) << grades[1].reason;
  EXPECT_EQ(grades[2].reason_class, "deadline");
  EXPECT_EQ(grades[3].reward, 1.0) << grades[3].reason;
  EXPECT_EQ(grade_one(graders, request(4, "plus 3")).reward, 3.0);
}

TEST_F(ServedReward, ThatEndsGivesNoRewardAndTheRunGoesOn) {
  Graders graders(served(service_.url(), 20.0, 1));
  EXPECT_EQ(grade_one(graders, request(1, "plus 1")).reward, 1.0);
  service_.stop();
  const Grade grade = grade_one(graders, request(2, "plus 1"));
  EXPECT_EQ(grade.reason_class, "service") << grade.reason;
  EXPECT_TRUE(grade.gives_none());
  EXPECT_EQ(grade.reason, service_.address() + " gave no answer in 2 attempts; the last: connection refused");
}

TEST_F(ServedReward, ThatNobodyServesIsSaidBeforeAnythingIsLoaded) {
  GraderConfig config = served(service_.url());
  config.service->try_connection = true;
  { const Graders fine(config); }
  service_.stop();
  try {
    const Graders graders(config);
    FAIL() << "was not refused";
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(std::string(error.what()), "--rm-url: cannot connect to " + service_.address() +
                                             ": connection refused; start the reward service first");
  }
}

TEST_F(ServedReward, GoesBesideOthersAndToTheLinesThatAskForIt) {
  ScorerConfig config;
  config.shows_parts = true;
  RewardSource own = source("math", 1.0, rule("math"));
  own.service = served(service_.url());
  config.sources = {own, source("verl", 0.25, function("several.py:by_verl"))};
  Scorer scorer(config);
  std::vector<GradeRequest> group = {request(0, "plus 4", "4"), request(1, "plus 4", "plus 4")};
  group[1].rm_type = "remote_rm";
  std::vector<Grade> grades = scored(scorer, group);
  EXPECT_EQ(parts_text(grades[0]), "math=1 verl=2 ");
  EXPECT_EQ(parts_text(grades[1]), "math=4 verl=2 ");
  EXPECT_EQ(grades[1].reward, 4.5);

  RewardSource first;  // --rm-url, and lines that ask for something else
  first.name = "remote_rm";
  first.asks_service_first = true;
  first.service = served(service_.url());
  first.graders = rule("exact");
  config.shows_parts = false;
  config.sources = {first};
  Scorer other(config);
  group[1].rm_type = "exact";
  grades = scored(other, group);
  EXPECT_EQ(grades[0].reward, 4.0);
  EXPECT_EQ(grades[1].reward, 1.0);
}

}  // namespace
}  // namespace tandem::reward
