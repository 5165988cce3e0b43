// A person reads these lines after each rollout and at the end of a run.
#include "report/step_line.h"

#include <gtest/gtest.h>

#include "report/terminal.h"

namespace tandem::report {
namespace {

const Metrics kRollout = {{"rollout/raw_reward", 0.96484375},
                          {"rollout/response_len/mean", 3.227},
                          {"rollout/truncated_ratio", 0.0},
                          {"rollout/groups_without_signal", 24.0},
                          {"rollout/groups_with_equal_rewards", 24.0},
                          {"perf/rollout_time", 0.11},
                          {"perf/train_time", 0.12}};
const Metrics kStep = {{"train/loss", -4.337e-19}, {"train/entropy", 0.04202}, {"train/grad_norm", 0.7416}};

TEST(StepLine, SaysWhatHappenedAndWhatIsLeft) {
  EXPECT_EQ(step_line({.rollout = 75, .num_rollouts = 300, .num_groups = 32, .elapsed_s = 20.0}, kRollout, kStep, 200),
            "rollout 75/300  reward 0.965  length 3.23  loss 0  entropy 0.042  grad 0.742  "
            "24 of 32 groups have equal rewards  0.23 s  elapsed 0:20  ETA 1:00");
}

TEST(StepLine, SaysWhatIsOutOfTheOrdinary) {
  Metrics rollout = kRollout, step = kStep;
  rollout["rollout/truncated_ratio"] = 0.125;
  rollout["rollout/groups_without_signal"] = rollout["rollout/groups_with_equal_rewards"] = 1.0;
  step["train/loss"] = 2e-9;
  step["train/kl"] = 1e-17;
  step["train/grad_clipped"] = 1.0;
  step["train/grad_norm"] = 1605432.1;
  // The run resumed after 70: its pace is that of its own rollouts.
  const Progress progress = {
      .rollout = 75, .num_rollouts = 80, .first_rollout = 70, .num_groups = 32, .num_failed = 3, .elapsed_s = 7200.0};
  EXPECT_EQ(step_line(progress, rollout, step, 200),
            "rollout 75/80  reward 0.965  length 3.23  truncated 0.125  loss 2e-09  entropy 0.042  kl 0  "
            "grad 1,605,432 (clipped)  1 of 32 groups has equal rewards  failed 3  0.23 s  elapsed 2:00:00  "
            "ETA 2:00:00");
  Progress exempt = progress;
  exempt.num_not_applied_to = 12;
  EXPECT_NE(step_line(exempt, rollout, step, 200).find("equal rewards  failed 3  12 without a reward  0.23 s"),
            std::string::npos);
  exempt.num_failed = 0;
  EXPECT_NE(step_line(exempt, rollout, step, 200).find("equal rewards  12 without a reward  0.23 s"),
            std::string::npos);
  // In two groups no sample has a reward, in one all rewards are equal.
  rollout["rollout/groups_without_signal"] = 3.0;
  EXPECT_NE(step_line(progress, rollout, step, 200).find("  3 of 32 groups give no signal  "), std::string::npos);
  // The estimator learns from these equal rewards.
  rollout["rollout/groups_without_signal"] = 0.0;
  EXPECT_EQ(step_line(progress, rollout, step, 200).find("groups"), std::string::npos);
}

TEST(StepLine, SaysWhatAFilterDid) {
  Metrics rollout = kRollout;
  rollout["rollout/groups_without_signal"] = rollout["rollout/groups_with_equal_rewards"] = 0.0;
  rollout["rollout/dynamic_filter/groups"] = 57.0;
  rollout["rollout/dynamic_filter/raw_reward"] = 0.7125;
  Progress progress = {.rollout = 75, .num_rollouts = 300, .num_groups = 32, .elapsed_s = 20.0};
  EXPECT_NE(step_line(progress, rollout, kStep, 200).find("  32 of 57 groups kept (reward of all 0.713)  0.23 s"),
            std::string::npos);
  progress.num_excess = 5;
  EXPECT_NE(step_line(progress, rollout, kStep, 200).find("(reward of all 0.713), 5 in excess  0.23 s"),
            std::string::npos);
}

TEST(StepLine, SaysHowOldSamplesAreAndWhoWaits) {
  Metrics rollout = kRollout;
  rollout["rollout/groups_without_signal"] = 0.0;
  rollout["rollout/staleness/mean"] = 0.8125;
  rollout["rollout/staleness/max"] = 2.0;
  const Progress progress = {.rollout = 75, .num_rollouts = 300, .num_groups = 32, .elapsed_s = 20.0};
  EXPECT_NE(step_line(progress, rollout, kStep, 200).find("  age 0.81 (at most 2)  0.23 s"), std::string::npos);
  rollout["perf/rollout_idle_share"] = 0.08;
  EXPECT_NE(step_line(progress, rollout, kStep, 200).find("  age 0.81 (at most 2), samplers idle 8 %  0.23 s"),
            std::string::npos);
  // Where others sample while the run trains, the two times overlap.
  rollout["perf/weights_pause_time"] = 0.01;
  rollout["perf/wait_time_ratio"] = 0.125;
  rollout["perf/step_time"] = 0.16;
  EXPECT_NE(step_line(progress, rollout, kStep, 200).find("  age 0.81 (at most 2), trainers idle 12 %  0.16 s"),
            std::string::npos);
}

TEST(StepLine, FitsTheTerminal) {
  const Progress progress = {.rollout = 75, .num_rollouts = 300, .num_groups = 32, .elapsed_s = 20.0};
  EXPECT_EQ(step_line(progress, kRollout, kStep, 100),
            "rollout 75/300  reward 0.965  length 3.23  loss 0  entropy 0.042  grad 0.742\n"
            "    24 of 32 groups have equal rewards  0.23 s  elapsed 0:20  ETA 1:00");
  // The same facts are in the same line, whether a group has equal rewards or not.
  Metrics rollout = kRollout;
  rollout["rollout/groups_without_signal"] = 0.0;
  EXPECT_EQ(step_line(progress, rollout, kStep, 100),
            "rollout 75/300  reward 0.965  length 3.23  loss 0  entropy 0.042  grad 0.742\n"
            "    0.23 s  elapsed 0:20  ETA 1:00");
  EXPECT_EQ(step_line(progress, kRollout, kStep, 44),
            "rollout 75/300  reward 0.965  length 3.23\n"
            "    loss 0  entropy 0.042  grad 0.742\n"
            "    24 of 32 groups have equal rewards\n"
            "    0.23 s  elapsed 0:20  ETA 1:00");
}

TEST(EndLine, SaysHowTheRunGoesOn) {
  const Progress progress = {.rollout = 3, .num_rollouts = 5};
  EXPECT_EQ(end_line(false, progress, 5, 1, "runs/x"), "done after 3 of 5 rollouts, 1 warning; runs/x");
  EXPECT_EQ(end_line(true, progress, 3, 0, "runs/x"),
            "stopped after 3 of 5 rollouts, 0 warnings; --load runs/x resumes it");
  EXPECT_EQ(end_line(true, {.rollout = 0, .num_rollouts = 5}, 0, 2, "runs/x"),
            "stopped after 0 of 5 rollouts, 2 warnings; nothing is saved yet: --overwrite, or --load runs/x "
            "--allow-fresh-start, begins again in runs/x");
  EXPECT_EQ(end_line(true, progress, 0, 0, "runs/x"),
            "stopped after 3 of 5 rollouts, 0 warnings; nothing is saved yet: --overwrite begins again in runs/x")
      << "it has gone on from a checkpoint elsewhere";
}

// By default a run loses ten rollouts at most to a power cut, and its disk holds one export.
}  // namespace
}  // namespace tandem::report
