// From rewards to advantages, by the row of --advantage-estimator. In double, group by group in the order of the
// samples; group-local except where the estimator or --normalize-advantages whitens over the whole step. docs/LOSSES.md
// gives formulas, sources and the golden cases.
#pragma once

#include <span>

#include "rl/loss_config.h"
#include "rl/sample.h"

namespace tandem::rl {

// Writes every sample's `advantages`: [1] where all its tokens share one number, else [N]. Groups are told apart by
// group_id; their samples need not be neighbours. A failed sample has no reward: it stays out of its group's statistics
// and its advantage is 0. So is that of a sample alone in its group, where the estimator needs others. `samples`:
// everything that one optimizer step, or one rollout, is normalised over. BugError when a reward is not finite.
void assign_advantages(const LossConfig& config, std::span<Sample* const> samples);

}  // namespace tandem::rl
