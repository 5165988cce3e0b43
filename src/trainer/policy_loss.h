// The loss of a packed micro-batch: scores of its targets to the host, through rl/losses.h in double, and the gradients
// back as tensors. Nothing here is normalised: the trainer does that once, at the end of the optimizer step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "rl/losses.h"
#include "trainer/packed_batch.h"
#include "trainer/token_scores.h"

namespace tandem::trainer {

struct LossTerms {
  at::Tensor dlogprobs_R;  // float32, where the scores are
  at::Tensor dentropy_R;   // float32; undefined where the loss has no entropy term
  bool is_zero = true;     // no target has a gradient: nothing to differentiate
};

// What the loss counts of a sample: its loss mask, or nothing of a removed one.
std::vector<uint8_t> trained_tokens(const rl::Sample& sample);

// Adds every sample of the batch to `sums`. The engine's log-probs are the old ones.
LossTerms policy_loss(const rl::LossConfig& config, const PackedBatch& batch, const TokenScores& scores,
                      rl::LossSums& sums);

}  // namespace tandem::trainer
