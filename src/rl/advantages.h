// Computes advantages from rewards, by the row of --advantage-estimator, in double, group by group in the order of the
// samples. They depend on the group alone, unless the estimator or --normalize-advantages whitens over the whole
// rollout. docs/LOSSES.md gives formulas, sources and the golden cases.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "rl/distillation.h"
#include "rl/loss_config.h"
#include "rl/sample.h"

namespace tandem::rl {

// Holds the rewards that are added up to each sample's, for reward_aggregation "normalize_then_sum".
struct RewardParts {
  std::vector<double> weights;  // one for each reward
  // values[sample][reward], before the weight; unset where the reward failed or does not apply.
  std::vector<std::vector<std::optional<double>>> values;
};

// Sets the penalties of every sample (reward_shaping.h) and computes its `advantages` from what they leave of its
// reward: [1] if all its tokens share one number, else [N]. Groups are told apart by group_id; their samples need not
// be adjacent. A failed sample has no reward: it stays out of its group's statistics and its advantage is 0. If the
// estimator subtracts the group's mean, equal rewards have advantages of exactly 0 before any whitening, and so has a
// sample alone in its group. `samples` is the whole rollout, over which whitening goes. Throws BugError when a reward
// is not finite, EnvironmentError when a log-prob of the reference or of the teacher is not. With opd.is_on the teacher
// has scored the samples, and its part is added before any whitening; the result says how much of each there is.
//
// With reward_aggregation "normalize_then_sum" a sample's advantage is the weighted sum of its `rewards`, each
// normalised in its group, divided by the standard deviation of these sums over the rollout. Without them the reward is
// the only one. A failed sample that has a reward counts with the lowest value that its group has of each reward.
AdvantageParts assign_advantages(const LossConfig& config, std::span<Sample> samples, const RewardParts& rewards = {});

}  // namespace tandem::rl
