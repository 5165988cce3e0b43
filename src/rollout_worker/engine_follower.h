// Runs a process of an engine that only samples, other than its first one. It does what the first process does, which
// alone talks with the run.
#pragma once

#include "config/train_config.h"
#include "rollout_worker/engine_ranks.h"
#include "session/model_session.h"

namespace tandem::rollout_worker {

// Follows the first rank until that ends the engine. If the engine never joined the run, it throws the UserError or
// EnvironmentError that the first rank had. Throws EnvironmentError if the first rank is gone, or if a part of new
// weights is not as it was sent.
void follow_engine(const config::TrainConfig& config, session::ModelSession& session, EngineRanks& ranks);

}  // namespace tandem::rollout_worker
