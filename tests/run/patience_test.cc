// Checks when a run in which everything goes wrong ends.
#include "run/patience.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>

#include "base/files.h"
#include "base/log.h"
#include "tandem/error.h"
#include "tests/base/faulty_disk.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"

namespace tandem::run {
namespace {

report::Metrics step(double skipped, double zero_gradient, double loss = 0.5) {
  return {{"train/step_skipped", skipped},
          {"train/zero_gradient", zero_gradient},
          {"train/loss", loss},
          {"train/grad_norm", 12.0}};
}

TEST(CountSkipped, CountsStepsInARowAndStepsWithoutAGradientLeaveTheCountAsItIs) {
  EXPECT_EQ(count_skipped(0, step(1.0, 0.0)), 1);
  EXPECT_EQ(count_skipped(4, step(1.0, 0.0)), 5);
  EXPECT_EQ(count_skipped(4, step(0.0, 1.0)), 4);
  EXPECT_EQ(count_skipped(4, step(0.0, 0.0)), 0);
}

TEST(SkippedText, NamesADamagedWeightOnlyWhereTheNumbersAreNotFinite) {
  const auto damaged = [] { return std::string("the norm is damaged"); };
  EXPECT_EQ(skipped_text(step(1.0, 0.0), damaged), "loss 0.5, gradient norm 12");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(skipped_text(step(1.0, 0.0, nan), damaged), "loss nan, gradient norm 12; the norm is damaged");
  EXPECT_EQ(skipped_text(step(1.0, 0.0, nan), [] { return std::string(); }), "loss nan, gradient norm 12");
}

// Two samples, of which some could not be graded.
sampling::Rollout rollout_with(int num_failed, const std::string& reason_class = "exception") {
  sampling::Rollout rollout;
  for (int i = 0; i < 2; ++i) {
    rl::Sample sample;
    sample.sample_id = static_cast<uint64_t>(i);
    sample.prompt = rl::make_prompt({1}, "prompt", "");
    sample.grading_failed = i < num_failed;
    reward::Grade grade;
    grade.sample_id = sample.sample_id;
    grade.failed = sample.grading_failed;
    grade.reason_class = grade.failed ? reason_class : "";
    grade.reason = grade.failed ? "boom" : "";
    rollout.samples.push_back(sample);
    rollout.grades.push_back(grade);
  }
  rollout.count_failures();
  return rollout;
}

class PatienceTest : public testing::Test {
 protected:
  PatienceTest() {
    limits_.max_skipped_steps = 3;
    limits_.max_failed_rollouts = 3;
    directory_.create();
    log_ = std::make_unique<RunLog>(directory_, RunLog::Options{});
  }
  Patience begin(const checkpoint::RunState& start = {}) const {
    return {limits_, directory_, [] { return std::string(); }, start};
  }
  static checkpoint::RunState after_failed_rollouts(int64_t count) {
    checkpoint::RunState state;
    state.failed_in_a_row = count;
    return state;
  }

  base::TemporaryDirectory folder_;
  config::CheckpointOptions limits_;
  checkpoint::RunDirectory directory_{folder_ / "run", checkpoint::RunFolder::kNew, 0};
  std::unique_ptr<RunLog> log_;
};

TEST_F(PatienceTest, EndsARunWhoseAdvantagesFailInARow) {
  Patience patience = begin(after_failed_rollouts(1));
  sampling::Rollout rollout = rollout_with(0);
  rollout.advantage_failure = "KeyError: 'x' (advantages.py:3)";
  patience.observe_rollout(4, rollout);
  EXPECT_EQ(base::thrown_by([&] { patience.observe_rollout(5, rollout); }),
            "rollout 6: --custom-advantage-path failed, the last of 3 rollouts in a row that failed "
            "(--max-failed-rollouts), so nothing is learnt: mend it: KeyError: 'x' (advantages.py:3)");
  Patience other = begin(after_failed_rollouts(2));
  other.observe_rollout(4, rollout_with(0));
  EXPECT_NO_THROW(other.observe_rollout(5, rollout));
}

TEST_F(PatienceTest, StepsThatAreSkippedInARowEndTheRunAndLeaveTheirRollout) {
  Patience patience = begin();
  const sampling::Rollout rollout = rollout_with(0);
  const report::Metrics skipped = step(1.0, 0.0), taken = step(0.0, 0.0);
  for (const report::Metrics& metrics : {skipped, skipped, taken, skipped, skipped})
    patience.observe_step(6, metrics, rollout, *log_);
  EXPECT_FALSE(base::file_exists(directory_.fault_folder() + "/7.jsonl"));
  patience.observe_step(7, skipped, rollout, *log_);
  const std::string message = base::thrown_by([&] { patience.observe_rollout(7, rollout); });
  EXPECT_TRUE(message.starts_with("3 optimizer steps in a row were skipped (--max-skipped-steps)")) << message;
  const std::string file = directory_.fault_folder() + "/7.jsonl";
  EXPECT_NE(message.find(file), std::string::npos) << message;
  EXPECT_NE(base::read_file(file).find("\"prompt\""), std::string::npos);
}

// Every rank once wrote the rollout, and one whose disk was full left the others in the middle of a step.
TEST_F(PatienceTest, ThatRolloutIsWrittenByRank0AndAFullDiskIsCountedWhereTheRunContinues) {
  const std::string file = directory_.fault_folder() + "/7.jsonl";
  base::FullAtTimes disk;
  const base::ReplacedFileCalls replaced(disk);
  base::set_log_level(base::LogLevel::kError);
  for (const bool is_conductor : {false, true}) {
    RunLog log(directory_, {.continues_after_save_error = true, .is_conductor = is_conductor});
    Patience patience = begin();
    disk.is_full = true;
    for (int i = 0; i < 3; ++i) patience.observe_step(7, step(1.0, 0.0), rollout_with(0), log);
    disk.is_full = false;
    report::Metrics counted;
    if (is_conductor) counted["fault/unwritten_samples"] = 1.0;
    EXPECT_EQ(log.take(), counted);
    EXPECT_FALSE(base::file_exists(file));
    EXPECT_NE(base::thrown_by([&] { patience.observe_rollout(7, rollout_with(0)); }), "") << "all ranks end";
  }
  base::set_log_level(base::LogLevel::kInfo);
}

TEST_F(PatienceTest, RolloutsWithoutAGradeInARowEndTheRun) {
  Patience patience = begin();
  for (const int num_failed : {2, 2, 1, 2, 2}) patience.observe_rollout(0, rollout_with(num_failed));
  const std::string message = base::thrown_by([&] { patience.observe_rollout(5, rollout_with(2)); });
  EXPECT_TRUE(message.starts_with("rollout 6: the reward failed on every sample of 3 rollouts in a row")) << message;
  EXPECT_TRUE(message.ends_with("sample 0: boom")) << message;

  Patience generates = begin(after_failed_rollouts(2));
  EXPECT_TRUE(base::thrown_by([&] {
                generates.observe_rollout(0, rollout_with(2, sampling::kGenerateFailure));
              }).starts_with("rollout 1: --custom-generate-function-path failed on every sample"));
}

TEST_F(PatienceTest, AFilterThatFailsOnEveryGroupEndsTheRunAsAReward) {
  sampling::Rollout rollout = rollout_with(0);
  rollout.filtered.emplace();
  rollout.filtered->num_judged = 4;
  rollout.filtered->num_failures = 3;
  rollout.filtered->first_failure = "no such key";
  Patience patience = begin(after_failed_rollouts(2));
  patience.observe_rollout(0, rollout);
  for (int i = 0; i < 2; ++i) {
    rollout.filtered->num_failures = 4;
    patience.observe_rollout(1, rollout);
  }
  const std::string message = base::thrown_by([&] { patience.observe_rollout(3, rollout); });
  EXPECT_NE(message.find("--dynamic-sampling-filter-path failed on every group"), std::string::npos) << message;
  EXPECT_TRUE(message.ends_with("no such key")) << message;
  EXPECT_EQ(base::thrown_by([&] { patience.check_that_some_were_graded(4); }), "") << "its samples were graded";
}

// A run may be too short for --max-failed-rollouts.
TEST_F(PatienceTest, ARunOfWhichNothingWasGradedDoesNotEndWell) {
  Patience patience = begin();
  EXPECT_EQ(base::thrown_by([&] { patience.check_that_some_were_graded(0); }), "");
  patience.observe_rollout(0, rollout_with(2));
  EXPECT_EQ(base::thrown_by([&] { patience.check_that_some_were_graded(1); }),
            "no sample of the run's only rollout was graded, because grading failed for all of them, so nothing was "
            "learnt: mend the reward; the first of the last rollout: sample 0: boom");
  patience.observe_rollout(1, rollout_with(2));
  EXPECT_EQ(base::thrown_by([&] { patience.check_that_some_were_graded(2); }),
            "no sample of the run's 2 rollouts was graded, because grading failed for all of them, so nothing was "
            "learnt: mend the reward; the first of the last rollout: sample 0: boom");
  Patience generates = begin();
  generates.observe_rollout(0, rollout_with(2, sampling::kGenerateFailure));
  EXPECT_TRUE(
      base::thrown_by([&] {
        generates.check_that_some_were_graded(1);
      }).starts_with("--custom-generate-function-path failed in the run's only rollout, so nothing was learnt"));

  Patience once_graded = begin();
  for (const int num_failed : {2, 1, 2}) once_graded.observe_rollout(0, rollout_with(num_failed));
  EXPECT_EQ(base::thrown_by([&] { once_graded.check_that_some_were_graded(3); }), "");
}

TEST_F(PatienceTest, ACheckpointBringsTheCountsBack) {
  Patience patience = begin();
  patience.observe_step(0, step(1.0, 0.0), rollout_with(0), *log_);
  patience.observe_rollout(0, rollout_with(2));
  checkpoint::RunState state;
  patience.save(state);
  EXPECT_EQ(state.skipped_in_a_row, 1);
  EXPECT_EQ(state.failed_in_a_row, 1);
  EXPECT_EQ(state.ungraded_in_a_row, 1);
  Patience resumed = begin(state);
  Patience skipping = begin(state);
  for (int i = 0; i < 2; ++i) skipping.observe_step(1, step(1.0, 0.0), rollout_with(0), *log_);
  EXPECT_THROW(skipping.observe_rollout(1, rollout_with(0)), UserError);
  resumed.observe_rollout(1, rollout_with(2));
  EXPECT_NE(base::thrown_by([&] { resumed.check_that_some_were_graded(2); }), "");
  EXPECT_THROW(resumed.observe_rollout(2, rollout_with(2)), UserError);
}

}  // namespace
}  // namespace tandem::run
