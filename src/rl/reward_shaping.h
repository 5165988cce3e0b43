// Changes samples before advantages are computed: tokens of older weights and completions that were cut leave the loss,
// long completions lose reward, and so do those that the reference finds unlikely. docs/LOSSES.md gives formulas and
// sources. `Sample::reward` keeps the value of the reward function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "rl/loss_config.h"
#include "rl/sample.h"

namespace tandem::rl {

// Returns one token's estimate of the KL against the reference: k1 of Schulman, "Approximating KL divergence", the
// log-prob that the token was sampled with minus the reference's. In a reward it is the estimate whose policy gradient
// is that of the KL itself. Throws BugError if the reference did not score the sample.
double reference_kl(const Sample& sample, size_t token);

// Sets the loss mask of tokens that were not sampled with weights of `version` to 0, with
// --mask-offpolicy-in-partial-rollout. An answer that nobody sampled keeps its mask. slime does so as it samples
// (sglang_rollout.py, generate_and_rm), and everything after counts these tokens as it counts those of a tool.
void mask_older_tokens(const LossConfig& config, uint64_t version, std::span<Sample> samples);

// Removes completions that were cut at a limit from the loss, with --mask-truncated-completions.
void remove_truncated(const LossConfig& config, std::span<Sample> samples);

// Sets both penalties of every sample; tokens that are not trained add no KL. A sample without a reward has penalties
// of 0. Throws EnvironmentError if the reference's log-probs are not finite.
void set_penalties(const LossConfig& config, std::span<Sample> samples);

// Returns metrics of the parts that are turned on: kl (the mean over tokens, by the reducer of metrics.h, with or
// without `per_token`), kl_penalty/mean, overlong_penalty/mean, overlong_ratio (the share of samples that lost reward
// for their length), shaped_reward (the mean of the rewards that advantages are computed from), truncated_masked
// (samples). Means are over samples with a reward; if none has one, they are absent.
std::map<std::string, double> shaping_metrics(const LossConfig& config, std::span<const Sample* const> samples,
                                              bool per_token);

}  // namespace tandem::rl
