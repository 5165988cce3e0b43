// Gives rewards to samples whose grading failed (--rm-failure-reward). A policy that is paid more for breaking its
// grader than for being wrong learns to break it, so by default such a sample has the lowest reward.
#pragma once

#include <optional>
#include <span>

#include "config/reward_options.h"
#include "reward/graders.h"
#include "rl/sample.h"

namespace tandem::sampling {

// Returns the reward of the samples of one group whose grading failed. A filter of groups and training both ask here,
// so they have the same number. Returns nullopt if such samples have no reward, or if no sample of the group was
// graded.
std::optional<double> failure_reward_among(const config::FailureReward& policy, std::span<const reward::Grade> grades);

// Marks the samples whose grade failed and gives them their reward: the one among their group's grades or, if the whole
// group failed (no filter is asked about such a group), the one among all `grades`. Two kinds of samples are dropped
// whatever the policy says: those that failed by no fault of the reward, and all of them if not one was graded, since
// there is nothing to compare with. `grades` has one entry for each sample of one rollout or one evaluation set.
void put_failure_rewards(const config::FailureReward& policy, std::span<const reward::Grade> grades,
                         std::span<rl::Sample> samples);

}  // namespace tandem::sampling
