// Computes log-probs and entropies of given completions under a model: the trainer's forward, without gradients and
// without an optimizer.
#pragma once

#include <vector>

#include "model/model.h"
#include "rl/sample.h"
#include "trainer/packed_batch.h"
#include "trainer/ranks.h"
#include "trainer/token_scores.h"
#include "trainer/trainer_config.h"

namespace tandem::trainer {

struct Scores {
  std::vector<std::vector<float>> logprobs, entropy;  // [sample][token of its completion]
};

// Returns scores in the order of `samples`; masks do not matter. Logits are divided by `temperature` > 0. Several ranks
// are given the same samples; each computes its share, and all return all scores.
Scores score(const model::Model& model, const std::vector<const rl::Sample*>& samples, const BatchConfig& batch,
             double temperature, const Ranks& ranks = no_other_ranks());

// Scores one packed micro-batch. The tensors are undefined where it has no targets.
TokenScores score_batch(const model::Model& model, const PackedBatch& batch, const HeadOptions& head);

}  // namespace tandem::trainer
