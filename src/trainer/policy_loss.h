// The loss of a packed micro-batch: scores of its targets go to the host and through rl/losses.h in double, and the
// gradients come back as tensors. Nothing here is normalised: the trainer does that once, at the end of the optimizer
// step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "device/ops.h"
#include "rl/losses.h"
#include "trainer/packed_batch.h"
#include "trainer/token_scores.h"

namespace tandem::trainer {

struct LossTerms {
  at::Tensor dlogprobs_R;          // float32, on the scores' device
  at::Tensor dentropy_R;           // float32; undefined where the loss has no entropy term
  bool is_zero = true;             // true: no target has a gradient, so there is nothing to differentiate
  std::vector<rl::LossSums> sums;  // terms of each of the batch's samples
};

// The tokens of a sample that the loss counts: its loss mask without the tokens that --tis-mode reject takes out, or
// nothing of a removed sample.
struct TrainedTokens {
  std::vector<uint8_t> mask;
  int64_t num_rejected = 0;
};
TrainedTokens trained_tokens(const rl::LossConfig& config, const rl::Sample& sample);

// The loss of an optimizer step whose samples have been counted.
struct StepLoss {
  const rl::LossConfig& config;
  double entropy_share;  // entropy share of rl::LossNormaliser
};

// Takes the engine's log-probs as the old ones. Waits for the scores.
LossTerms policy_loss(const StepLoss& loss, const PackedBatch& batch, const TokenScores& scores);

// Returns the same gradient from the log-probs that the samples bring, where the forward will give the same ones: so it
// is known before the forward. There are no sums, which need entropies.
LossTerms policy_loss_of_rollout(const StepLoss& loss, const PackedBatch& batch);

// The loss of a batch whose scores are on their way from the device.
class PendingLoss {
 public:
  PendingLoss(const PackedBatch& batch, const TokenScores& scores, const device::Ops& ops);
  // Waits for the scores. Returns LossTerms::sums.
  std::vector<rl::LossSums> sums(const StepLoss& loss) const;

 private:
  std::vector<const rl::Sample*> samples_;
  std::vector<int64_t> target_offsets_;
  std::unique_ptr<device::Ops::Fetch> logprobs_R_, entropy_R_;
};

}  // namespace tandem::trainer
