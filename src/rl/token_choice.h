// Chooses tokens of an optimizer step that the policy term treats apart: for --pg-loss-type clip_cov and kl_cov by the
// covariance of their advantage and log-prob (arXiv 2505.22617; verl's compute_policy_loss_clip_cov and _kl_cov),
//
//   cov_t = (A_t - mean A) (logp_t - mean logp)
//
// and for --top-entropy-quantile by their entropy (arXiv 2506.01939; TRL's get_high_entropy_mask).
//
// The projects choose among the tokens of a micro-batch. Here means, quantile and choice are over all trained tokens of
// the step, so that neither the split into micro-batches nor the number of ranks has a part in them. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rl/loss_config.h"

namespace tandem::rl {

// Holds what is known of a sample before the step's first backward. All arrays have the length of `mask`.
struct ChoiceInput {
  uint64_t sample_id = 0;
  std::span<const uint8_t> mask;        // 1 where the loss counts; of other tokens nothing is read or chosen
  const float* logprobs = nullptr;      // current policy
  const float* old_logprobs = nullptr;  // as in LossInput, for the tokens that clip_cov finds clipped already
  const double* advantages = nullptr;
  const float* entropy = nullptr;  // may be null unless chooses_by_entropy()
};

// Names the random numbers of a step: the same ones choose the same tokens.
struct ChoiceSeed {
  uint64_t seed = 0;  // of the run
  uint64_t step = 0;  // number of the optimizer step in the run
};

// Holds 1 for each chosen token of a sample. A vector is empty where the loss makes no such choice.
struct TokenChoice {
  std::vector<uint8_t> covariant;    // have no term, or a penalty
  std::vector<uint8_t> low_entropy;  // have no term, and no part in the entropy bonus
};

// Returns how many tokens of these samples have low entropy.
int64_t num_low_entropy(std::span<const TokenChoice> choices);

bool chooses_by_covariance(const LossConfig& config);
bool chooses_by_entropy(const LossConfig& config);

// Chooses among the trained tokens of all samples of the step. Returns the choice of each sample, in their order.
//
// kl_cov chooses the max(1, floor(kl_cov_ratio N)) tokens of the highest covariance of all N, the earlier sample and
// token where two are equal. clip_cov chooses max(1, floor(clip_cov_ratio N)) tokens, or all if there are fewer, among
// those whose covariance is between the bounds and whose ratio is not clipped in the loss. Each of them has a random
// number, made of seed, step, sample id and position, and the lowest are chosen.
//
// A token has low entropy if its entropy is below the quantile 1 - top_entropy_quantile of all N, as torch.quantile
// interpolates it: so tokens that are equal are treated alike.
std::vector<TokenChoice> choose_tokens(const LossConfig& config, std::span<const ChoiceInput> samples,
                                       const ChoiceSeed& seed);

}  // namespace tandem::rl
