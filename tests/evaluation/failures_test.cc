// What a rollout's failures are called: what failed, what the samples got, and that a reward which does not apply is no
// failure.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "evaluation/rollout_metrics.h"

namespace tandem::evaluation {
namespace {

struct GradedSample {
  std::string reason_class = "";      // "": its grading did not fail
  std::optional<double> reward = {};  // unset: it has none
};

sampling::Rollout graded_rollout(const std::vector<GradedSample>& samples) {
  sampling::Rollout rollout;
  for (const GradedSample& given : samples) {
    rl::Sample& sample = rollout.samples.emplace_back();
    sample.sample_id = rollout.samples.size();
    sample.has_reward = given.reward.has_value();
    sample.reward = given.reward.value_or(0.0);
    sample.grading_failed = !given.reason_class.empty();
    reward::Grade& grade = rollout.grades.emplace_back();
    grade.sample_id = sample.sample_id;
    grade.failed = sample.grading_failed;
    grade.reason_class = given.reason_class;
    grade.reason = given.reason_class.empty() ? "" : "it was " + given.reason_class;
  }
  rollout.count_failures();
  return rollout;
}

// Returns the warning of a rollout's failures, without what the log puts before it; "" where there is none.
std::string warning_of(const std::vector<GradedSample>& samples) {
  std::vector<std::string> lines;
  base::set_log_sink([&](base::LogLevel, const std::string& line) { lines.push_back(line); });
  warn_of_failures(graded_rollout(samples), "rollout 7");
  base::set_log_sink({});
  EXPECT_LE(lines.size(), 1U);
  return lines.empty() ? "" : lines.front().substr(lines.front().find("rollout 7"));
}

// The default, the lowest reward of the same group, was said to be the first sample's for all.
TEST(FailureWarnings, SayWhichRewardsTheSamplesWereGiven) {
  EXPECT_EQ(warning_of({{"", 1.0}, {"exception", -1.0}, {"exception", -1.0}, {"", 0.0}}),
            "rollout 7: grading failed for 2 of 4 samples, of which 2 have the reward -1 (--rm-failure-reward); the "
            "first: sample 2: it was exception");
  EXPECT_EQ(warning_of({{"exception", -1.95603}, {"deadline", -0.5}, {"exception", -3.25}, {"", 0.0}}),
            "rollout 7: grading failed for 3 of 4 samples, of which 3 have rewards from -3.25 to -0.5 "
            "(--rm-failure-reward); the first: sample 1: it was exception");
  EXPECT_EQ(warning_of({{"", 1.0}, {"exception", 0.0}}),
            "rollout 7: grading failed for 1 of 2 samples, of which 1 has the reward 0 (--rm-failure-reward); the "
            "first: sample 2: it was exception");
}

TEST(FailureWarnings, SayHowManyAreLeftOut) {
  EXPECT_EQ(
      warning_of({{"", 1.0}, {"service"}}),
      "rollout 7: grading failed for 1 of 2 samples, of which 1 has none and is left out; the first: sample 2: it "
      "was service");
  EXPECT_EQ(warning_of({{"service"}, {"exception", 0.5}, {"service"}}),
            "rollout 7: grading failed for 3 of 3 samples, of which 1 has the reward 0.5 (--rm-failure-reward) and 2 "
            "have none and are left out; the first: sample 1: it was service");
  EXPECT_EQ(warning_of({{"exception"}}),
            "rollout 7: grading failed for 1 of 1 sample, of which 1 has none and is left out; the first: sample 1: it "
            "was exception");
}

// A reward that raises is the user's to mend, as in training, and so is a request that a service refuses; a service
// that does not answer is not.
TEST(FailureCauses, AreTheEnvironmentsIfAllOfThemAre) {
  EXPECT_TRUE(failed_for_environment(graded_rollout({{"service"}, {"not_started"}, {"none"}})));
  EXPECT_FALSE(failed_for_environment(graded_rollout({{"service"}, {"http"}})));
  EXPECT_FALSE(failed_for_environment(graded_rollout({{"service"}, {"exception"}})));
  EXPECT_FALSE(failed_for_environment(graded_rollout({{"none"}, {"none"}})));
  EXPECT_FALSE(failed_for_environment(graded_rollout({{"exception"}, {"wrong_type"}})));
}

// None of a TRL function, which docs/REWARDS.md calls nobody's fault, was warned about in every rollout.
TEST(FailureWarnings, ARewardThatDoesNotApplyIsNone) {
  const std::vector<GradedSample> exempt = {{"none"}, {"", 1.0}, {"none"}};
  EXPECT_EQ(warning_of(exempt), "");
  EXPECT_EQ(num_not_applied_to(graded_rollout(exempt)), 2);
  EXPECT_EQ(first_failed(graded_rollout(exempt)), "");
  EXPECT_EQ(warning_of({{"none"}, {"exception", 0.0}, {"none"}, {"", 1.0}}),
            "rollout 7: grading failed for 1 of 4 samples, of which 1 has the reward 0 (--rm-failure-reward); the "
            "first: sample 2: it was exception");
  // What docs/METRICS.md counts stays as it is.
  EXPECT_EQ(
      failure_metrics(graded_rollout(exempt), "rollout"),
      (report::Metrics{{"rollout/grader_failed", 2.0}, {"rollout/grader_failed/none", 2.0}, {"rollout/dropped", 2.0}}));
}

TEST(FailureWarnings, NameTheFunctionThatFailed) {
  EXPECT_EQ(what_failed(graded_rollout({{"generate"}, {"none"}, {"", 1.0}})), "--custom-generate-function-path");
  EXPECT_EQ(what_failed(graded_rollout({{"generate"}, {"exception", 0.0}})),
            "grading, or --custom-generate-function-path,");
  EXPECT_EQ(what_failed(graded_rollout({{"none"}, {"exception", 0.0}})), "grading");
}

TEST(FailureCauses, AreThoseOfTheClasses) {
  const rl::FailureCauses causes = failure_causes(graded_rollout(
      {{"generate"}, {"generate"}, {"service"}, {"http", 0.0}, {"none"}, {"exception", 0.0}, {"", 1.0}}));
  EXPECT_EQ(causes.num_not_made, 2);
  EXPECT_EQ(causes.num_not_served, 2);
  EXPECT_EQ(causes.num_not_applied_to, 1);
}

TEST(FilterWarnings, CountGroupsInWords) {
  sampling::Rollout rollout;
  rollout.filtered.emplace();
  rollout.filtered->num_judged = 3;
  rollout.filtered->num_failures = 1;
  rollout.filtered->first_failure = "group 2: boom";
  std::string line;
  base::set_log_sink([&](base::LogLevel, const std::string& said) { line = said; });
  warn_of_filter(rollout, "rollout 7");
  EXPECT_TRUE(
      line.ends_with("rollout 7: the filter failed for 1 of 3 groups, which is kept (fault/dynamic_filter); the "
                     "first: group 2: boom"))
      << line;
  rollout.filtered->num_failures = 2;
  warn_of_filter(rollout, "rollout 7");
  base::set_log_sink({});
  EXPECT_TRUE(
      line.ends_with("rollout 7: the filter failed for 2 of 3 groups, which are kept (fault/dynamic_filter); "
                     "the first: group 2: boom"))
      << line;
}

}  // namespace
}  // namespace tandem::evaluation
