// The loss of a packed micro-batch: scores of its targets go to the host and through rl/losses.h in double, and the
// gradients come back as tensors. Nothing here is normalised: the trainer does that once, at the end of the optimizer
// step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "device/ops.h"
#include "rl/losses.h"
#include "rl/token_choice.h"
#include "trainer/packed_batch.h"
#include "trainer/score.h"
#include "trainer/token_scores.h"
#include "trainer/trainer.h"

namespace tandem::trainer {

struct LossTerms {
  at::Tensor dlogprobs_R;          // float32, on the scores' device
  at::Tensor dentropy_R;           // float32; undefined where the loss has no entropy term
  at::Tensor ddivergence_R;        // float32; undefined without opd.has_loss()
  bool is_zero = true;             // true: no target has a gradient, so there is nothing to differentiate
  std::vector<rl::LossSums> sums;  // terms of each of the batch's samples
};

// Tells which tokens of a step were sampled with the weights that are trained.
struct TokenAges {
  TokenAges(const std::vector<const rl::Sample*>& samples, RolloutLogprobs logprobs, std::optional<uint64_t> version);
  // Returns the token of the sample from which on all were sampled with these weights, as far as that is known.
  int64_t on_policy_begin(const rl::Sample& sample) const;
  // Returns whether the log-probs of the sample are those that a forward gives now; or of all these samples.
  bool is_known(const rl::Sample& sample) const { return is_first_step && on_policy_begin(sample) == 0; }
  bool are_known(const std::vector<const rl::Sample*>& samples) const;

  std::optional<uint64_t> version;  // unset: all samples are of one version
  bool is_first_step;               // the weights are those that are trained, still
  bool has_older = false;           // a token that the loss mask has was sampled with older ones
};

// The tokens of a sample that the loss counts: its loss mask without the tokens that --tis-mode reject takes out, or
// nothing of a removed sample.
struct TrainedTokens {
  std::vector<uint8_t> mask;
  int64_t num_rejected = 0;
};
TrainedTokens trained_tokens(const rl::LossConfig& config, const rl::Sample& sample);

// The tokens of each sample that the loss treats apart.
using TokenChoices = std::unordered_map<const rl::Sample*, rl::TokenChoice>;
// Returns how many tokens of the step have low entropy.
int64_t num_low_entropy(const TokenChoices& choices);
// Chooses them among all tokens of the step (rl/token_choice.h). `scores` has the log-probs of the present weights, of
// each sample in turn, and if the loss chooses by them the entropies.
TokenChoices choose_tokens(const rl::LossConfig& config, const std::vector<const rl::Sample*>& samples,
                           const Scores& scores, const rl::ChoiceSeed& seed);

// The loss of an optimizer step whose samples have been counted.
struct StepLoss {
  const rl::LossConfig& config;
  const TokenAges& ages;
  const TokenChoices& choices;  // empty where the loss treats no tokens apart
  double entropy_share;         // entropy share of rl::LossNormaliser
  // The forward's log-probs are those of a model with dropout. The gradient of samples whose log-probs are known is
  // taken at these: their ratio is 1 in the first step, whatever other samples are in their micro-batch.
  bool has_dropout = false;
};

// Takes the engine's log-probs as the old ones; with --old-logprobs proximal those that the samples bring, and the
// present ones where they bring none. Waits for the scores.
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
  std::unique_ptr<device::Ops::Fetch> divergence_R_;  // null without opd.has_loss()
};

}  // namespace tandem::trainer
