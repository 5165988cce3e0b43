// Options by which samples may be of older weights are refused where they need others, and have the defaults that
// docs/ASYNC.md gives.
#include "config/async_options.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/base/thrown.h"

namespace tandem::config {
namespace {

constexpr int64_t kBatch = 8;

std::string refusal(const AsyncOptions& options, bool colocate, int64_t groups_at_once = kBatch) {
  return base::thrown_by([&] { options.check(colocate, kBatch, groups_at_once, rl::LossConfig()); });
}

TEST(AsyncOptions, WhatNeedsAnotherFlagIsRefusedWithoutIt) {
  EXPECT_EQ(refusal({}, true), "");
  EXPECT_EQ(refusal({.partial_rollout = true, .phase_tokens = 9}, true), "");
  EXPECT_TRUE(refusal({.phase_tokens = 9}, true).starts_with("--rollout-phase-tokens 9: needs --partial-rollout"));
  EXPECT_EQ(refusal({.max_weight_staleness = 0}, true), "");
  EXPECT_TRUE(refusal({.max_weight_staleness = 2}, true).starts_with("--max-weight-staleness 2 with --colocate"));
  EXPECT_EQ(refusal({.max_weight_staleness = 2}, false), "");
  EXPECT_EQ(refusal({.max_weight_staleness = 2, .replay_schedule = "runs/a"}, false), "");
  EXPECT_TRUE(refusal({.replay_schedule = "runs/a"}, false).starts_with("--replay-schedule runs/a: needs the flags"));
  EXPECT_TRUE(refusal({.partial_rollout = true, .replay_schedule = "runs/a"}, true).starts_with("--replay-schedule"))
      << "a run in phases repeats itself";
}

// A group that is trained on two rollouts after it began leaves room for three batches.
TEST(AsyncOptions, TheBoundLeavesRoomForTheGroupsInFlight) {
  const AsyncOptions options = {.partial_rollout = true, .max_weight_staleness = 2};
  EXPECT_EQ(refusal(options, true, 3 * kBatch), "");
  EXPECT_TRUE(refusal(options, true, 3 * kBatch + 1).starts_with("--over-sampling-batch-size 25: "));
}

TEST(AsyncOptions, GroupsAreInFlightInPhasesAndWhereOthersSampleMeanwhile) {
  const AsyncOptions none, partial = {.partial_rollout = true}, stale = {.max_weight_staleness = 1},
                           phases = {.partial_rollout = true, .phase_tokens = 9, .max_weight_staleness = 1};
  for (const bool colocate : {false, true}) {
    EXPECT_FALSE(none.keeps_groups(colocate));
    EXPECT_TRUE(partial.keeps_groups(colocate));
    EXPECT_FALSE(partial.is_live(colocate));
    EXPECT_EQ(stale.is_live(colocate), !colocate);
    EXPECT_EQ(stale.keeps_groups(colocate), !colocate);
    EXPECT_FALSE(phases.is_live(colocate)) << "phases wait for the run";
  }
}

TEST(AsyncOptions, DefaultsFollowFromLengthAndBound) {
  const AsyncOptions partial = {.partial_rollout = true};
  EXPECT_EQ(partial.tokens_of_phase(1024), 256);
  EXPECT_EQ(partial.tokens_of_phase(3), 1);
  EXPECT_EQ((AsyncOptions{.partial_rollout = true, .phase_tokens = 7}).tokens_of_phase(1024), 7);

  EXPECT_EQ(AsyncOptions().default_groups_at_once(kBatch), kBatch);
  EXPECT_EQ(partial.default_groups_at_once(kBatch), 2 * kBatch);
  EXPECT_EQ((AsyncOptions{.partial_rollout = true, .max_weight_staleness = 0}).default_groups_at_once(kBatch), kBatch);
  EXPECT_EQ((AsyncOptions{.partial_rollout = true, .max_weight_staleness = 5}).default_groups_at_once(kBatch),
            2 * kBatch);
}

}  // namespace
}  // namespace tandem::config
