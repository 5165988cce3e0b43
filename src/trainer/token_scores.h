// Computes the head of a packed micro-batch, a chunk of rows at a time: log-probs and entropies of its targets, and
// their backward. Logits of a whole batch never exist; at most chunk_rows rows of them are alive at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/model.h"
#include "trainer/distillation.h"
#include "trainer/packed_batch.h"

namespace tandem::trainer {

struct HeadOptions {
  double temperature = 1.0;  // divisor of the logits, > 0
  int64_t chunk_rows = 0;    // rows of logits alive at once, > 0
};

// Holds the scores of every target of a batch, float32.
struct TokenScores {
  at::Tensor logprobs_R, entropy_R;
  at::Tensor logsumexp_R;   // logsumexp of logits / temperature
  at::Tensor divergence_R;  // from the teachers, after a backward with a Distillation; else undefined
  at::Tensor logits_RV;     // result of model.head(), kept for backward where one chunk holds all targets
};

// normed_TE is the result of model.final_norm(). There is no gradient. keep_logits says that a backward will follow.
TokenScores score_targets(const model::Model& model, const PackedBatch& batch, const at::Tensor& normed_TE,
                          const HeadOptions& options, bool keep_logits);

// Returns dnormed_TE (in normed_TE's dtype), the gradient of sum_r dlogprobs_r logprobs_r + dentropy_r entropy_r; the
// head's gradient goes into the model's sink. Consumes scores.logits_RV; recomputes logits where it is undefined. With
// a distillation, whose weights are set, its gradient is added and its divergences are computed; null: there is none.
at::Tensor score_targets_backward(const model::Model& model, const PackedBatch& batch, const at::Tensor& normed_TE,
                                  const HeadOptions& options, TokenScores scores, const at::Tensor& dlogprobs_R,
                                  const at::Tensor& dentropy_R, Distillation* distillation);

// Both are computed in one pass over the logits, where the gradients of log-probs and entropies are known before them.
struct ScoredGradient {
  TokenScores scores;
  at::Tensor dnormed_TE;
};
ScoredGradient score_targets_with_backward(const model::Model& model, const PackedBatch& batch,
                                           const at::Tensor& normed_TE, const HeadOptions& options,
                                           const at::Tensor& dlogprobs_R, const at::Tensor& dentropy_R,
                                           Distillation* distillation);

}  // namespace tandem::trainer
