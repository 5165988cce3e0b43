// On-policy distillation by log-probs: a teacher scores the tokens that the policy sampled, and each token's advantage
// loses what the policy finds likelier than the teacher. The policy gradient of that is the gradient of the reverse KL,
// of the policy against the teacher. docs/DISTILLATION.md gives formulas and sources.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "rl/loss_config.h"
#include "rl/sample.h"

namespace tandem::rl {

// Returns whether the completion of a prompt is the answer that its line gives, and not sampled: a draw by the run's
// seed and the group's number in the run, which comes out so for 1 - on_policy_share of the groups.
bool takes_answer(const OpdConfig& config, uint64_t seed, uint64_t group);

// Returns one token's estimate of the reverse KL: the log-prob that it was sampled with minus the teacher's (slime's
// opd_reverse_kl). Throws BugError if no teacher scored the sample.
double teacher_kl(const Sample& sample, size_t token);

// The means of |advantage| over the trained tokens of a rollout, by what made them, before any whitening.
struct AdvantageParts {
  double task = 0.0, teacher = 0.0;
  // Returns the teacher's share of both; 0 where there are none.
  double teacher_share() const { return teacher > 0.0 ? teacher / (task + teacher) : 0.0; }
};

// Adds the teacher's part to the advantages, which are then one for each token: [N]. Without use_task_rewards they are
// the teacher's alone. Tokens that are not trained keep theirs, and so do samples without a trained token. Throws
// EnvironmentError if a log-prob of the teacher is not finite.
AdvantageParts add_teacher(const OpdConfig& config, std::span<Sample> samples);

}  // namespace tandem::rl
