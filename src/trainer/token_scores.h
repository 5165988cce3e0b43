// The head of a packed micro-batch, a chunk of rows at a time: log-probs and entropies of its targets, and the way
// back. Logits of a whole batch never exist; at most chunk_rows rows of them are alive at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/model.h"
#include "trainer/packed_batch.h"

namespace tandem::trainer {

struct HeadOptions {
  double temperature = 1.0;  // that logits are divided by, > 0
  int64_t chunk_rows = 0;    // rows of logits alive at once, > 0
};

// Of every target of a batch, float32.
struct TokenScores {
  at::Tensor logprobs_R, entropy_R;
  at::Tensor logsumexp_R;  // of logits / temperature
  at::Tensor logits_RV;    // as model.head() gives them, kept for backward where one chunk holds them all
};

// normed_TE as model.final_norm() returns it. No gradient. keep_logits: a backward will follow.
TokenScores score_targets(const model::Model& model, const PackedBatch& batch, const at::Tensor& normed_TE,
                          const HeadOptions& options, bool keep_logits);

// The gradient of sum_r dlogprobs_r logprobs_r + dentropy_r entropy_r: the head's into the model's sink, dnormed_TE (in
// normed_TE's dtype) returned. Consumes scores.logits_RV; recomputes logits where it is undefined.
at::Tensor score_targets_backward(const model::Model& model, const PackedBatch& batch, const at::Tensor& normed_TE,
                                  const HeadOptions& options, TokenScores scores, const at::Tensor& dlogprobs_R,
                                  const at::Tensor& dentropy_R);

// Both in one pass over the logits, where the gradients of log-probs and entropies are known before them.
struct ScoredGradient {
  TokenScores scores;
  at::Tensor dnormed_TE;
};
ScoredGradient score_targets_with_backward(const model::Model& model, const PackedBatch& batch,
                                           const at::Tensor& normed_TE, const HeadOptions& options,
                                           const at::Tensor& dlogprobs_R, const at::Tensor& dentropy_R);

}  // namespace tandem::trainer
