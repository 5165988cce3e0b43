// Lists the weights that a run reads and does not train: its checkpoints lack them, so a resumed run compares them.
#pragma once

#include <vector>

#include "checkpoint/result_inputs.h"
#include "config/sft_config.h"
#include "config/train_config.h"
#include "scorer/messages.h"
#include "session/model_session.h"

namespace tandem::run {

// Returns the base of an adapter that is trained, and the weights that score: of the KL reference, of a reward model
// and of teachers. `teachers_elsewhere` is what those in processes of their own have said of themselves, in the order
// of the flags.
std::vector<checkpoint::FrozenWeights> frozen_weights(const config::TrainConfig& config,
                                                      const session::ModelSession& session,
                                                      const std::vector<scorer::Welcome>& teachers_elsewhere);
// Returns the base of an adapter that is trained, and what preferences are compared with: the weights of --ref-load, or
// those that the run begins with, which include the adapter that it trains on.
std::vector<checkpoint::FrozenWeights> frozen_weights(const config::SftConfig& config,
                                                      const session::ModelSession& session);

}  // namespace tandem::run
