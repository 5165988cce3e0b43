// What becomes of samples whose grading failed (--rm-failure-reward). A policy that is paid more for breaking its
// grader than for being wrong learns to break it, so by default such a sample has the lowest reward.
#pragma once

#include <optional>
#include <span>

#include "config/reward_options.h"
#include "reward/graders.h"
#include "rl/sample.h"

namespace tandem::sampling {

// The reward of the samples of one group whose grading failed: a filter of groups and training ask here, so both have
// the same number. nullopt: they have none, or nothing of the group was graded.
std::optional<double> failure_reward_among(const config::FailureReward& policy, std::span<const reward::Grade> grades);

// Marks the samples whose grade failed and gives them their reward: that of their group, or where the whole group
// failed, which no filter is asked about, the one among all `grades`. Dropped whatever the policy says: samples that
// failed by no fault of the reward, and all of them where not one was graded, since there is nothing to compare with.
// `grades`: one a sample, of one rollout or one evaluation set.
void put_failure_rewards(const config::FailureReward& policy, std::span<const reward::Grade> grades,
                         std::span<rl::Sample> samples);

}  // namespace tandem::sampling
