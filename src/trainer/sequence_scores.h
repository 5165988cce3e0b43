// Scores whole sequences under a reward model: the trainer's forward, without gradients, and a head on the host.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model.h"
#include "model/reward_model.h"
#include "trainer/ranks.h"
#include "trainer/trainer_config.h"

namespace tandem::trainer {

// Returns the score of each sequence, in their order: that of its last token (model::scored_length). Sequences have one
// token or more, each below the model's vocabulary. They are packed into micro-batches of the batch's budget, which
// change no bit. Several ranks are given the same sequences; each computes its share, and all return all scores.
std::vector<double> score_sequences(const model::Model& model, const model::RewardHead& head,
                                    const std::vector<std::vector<int32_t>>& sequences, const BatchConfig& batch,
                                    const Ranks& ranks = no_other_ranks());

}  // namespace tandem::trainer
