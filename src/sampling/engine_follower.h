// A process of an engine that only samples, other than its first: it does what that one does, which alone talks with
// the run.
#pragma once

#include "config/train_config.h"
#include "sampling/engine_ranks.h"
#include "session/model_session.h"

namespace tandem::sampling {

// Until the first rank ends the engine. UserError or EnvironmentError as the first rank had it where the engine never
// joined the run; EnvironmentError: the first rank is gone, or a part of new weights is not as it was sent.
void follow_engine(const config::TrainConfig& config, session::ModelSession& session, EngineRanks& ranks);

}  // namespace tandem::sampling
