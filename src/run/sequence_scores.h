// Log-probs and entropies of given sequences under a model: the trainer's forward without its optimizer.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model.h"
#include "rl/sample.h"
#include "trainer/token_scores.h"

namespace tandem::run {

struct SequenceScores {
  std::vector<std::vector<float>> logprobs, entropy;  // one list a sample, one number a completion token
};

// In the order of `samples`. max_tokens: packed tokens of one forward.
SequenceScores score_sequences(const model::Model& model, const std::vector<const rl::Sample*>& samples,
                               int64_t max_tokens, const trainer::HeadOptions& head);

}  // namespace tandem::run
