// What comes between a reward and its advantage: completions that were cut leave the loss, long ones lose reward, and
// so do those that the reference finds unlikely. docs/LOSSES.md gives formulas and sources. `Sample::reward` stays what
// the reward function gave.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "rl/loss_config.h"
#include "rl/sample.h"

namespace tandem::rl {

// The KL against the reference as one token estimates it: k1 of Schulman, "Approximating KL divergence", the log-prob
// that the token was sampled with less the reference's. In a reward it is the estimate whose policy gradient is that of
// the KL itself. BugError where the sample was not scored by the reference.
double reference_kl(const Sample& sample, size_t token);

// Takes completions that were cut at a limit out of the loss, with --mask-truncated-completions.
void remove_truncated(const LossConfig& config, std::span<Sample> samples);

// Sets both penalties of every sample; tokens that are not trained add no KL. A sample without a reward has penalties
// of 0. EnvironmentError where the reference's log-probs are not finite.
void set_penalties(const LossConfig& config, std::span<Sample> samples);

// What of the above was asked for, as numbers of a rollout: kl (the mean over tokens, by the reducer of metrics.h, with
// or without `per_token`), kl_penalty/mean, overlong_penalty/mean, overlong_ratio (the share of samples that lost
// reward for their length), shaped_reward (the mean of what advantages are made of), truncated_masked (samples). Means
// are over samples with a reward; where none has one, they are absent.
std::map<std::string, double> shaping_metrics(const LossConfig& config, std::span<const Sample* const> samples,
                                              bool per_token);

}  // namespace tandem::rl
