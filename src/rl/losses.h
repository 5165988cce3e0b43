// Losses: rows of one table, computed in double on the host from log-probs. A row maps log-probs of whole samples to
// per-token loss terms and their gradient d loss / d logp, d loss / d entropy. docs/LOSSES.md names for each row the
// formula's source and the golden cases it reproduces. Torch-free.
//
// Normalisation: what a micro-batch returns is unnormalised. Its sum over micro-batches is divided once, after the last
// one, by normaliser(): so any split of an optimizer step gives the same gradient.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tandem::rl {

// One sample's view of the numbers that a loss reads. All spans have `length` entries.
struct LossInput {
  int64_t length = 0;
  const float* logprobs = nullptr;      // current policy
  const float* old_logprobs = nullptr;  // old policy (the engine's log-probs in Tandem)
  const float* rollout_logprobs = nullptr;  // sampling engine's, for TIS and mismatch metrics; may be null
  const float* ref_logprobs = nullptr;  // reference; may be null
  const float* entropy = nullptr;       // may be null when the coefficient is 0 and metrics do not want it
  const uint8_t* mask = nullptr;        // 1 where the loss counts
  const double* advantages = nullptr;   // per token
};

// Where the gradient goes, unnormalised: same length.
struct LossGradient {
  double* dlogprobs = nullptr;
  double* dentropy = nullptr;           // may be null when the entropy coefficient is 0
};

struct LossConfig;  // rl/loss_config.h: names, clips, KL, entropy, TIS, aggregation

// Sums over samples; divide by normaliser() for the value in metrics. Keys: "loss", "pg_loss", "pg_clipfrac", "ppo_kl", "entropy_loss",
// "kl_loss", "train_rollout_logprob_abs_diff", "ois", "tis", "tis_abs", "tis_clipfrac", ... (vime's names)
using LossSums = std::map<std::string, double>;

}  // namespace tandem::rl
