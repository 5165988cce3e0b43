// The engine of a process that only samples, with the weights that come from the run and the memory for both. If
// several processes hold the model between them, each has such an object over its part, and all make the same calls.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "config/train_config.h"
#include "plan/plan.h"
#include "rollout/replica.h"
#include "rollout_worker/engine_ranks.h"
#include "rollout_worker/worker_weights.h"
#include "sampling/processes/messages.h"
#include "session/model_session.h"
#include "session/own_engine.h"
#include "session/run_memory.h"

namespace tandem::rollout_worker {

class WorkerEngine {
 public:
  // Plans and takes the memory, and maps the run's weights if it can. All arguments are borrowed; the session has no
  // weights yet. Throws UserError if the plan does not fit, and EnvironmentError if it does not fit on another rank.
  WorkerEngine(const config::TrainConfig& config, session::ModelSession& session, EngineRanks& ranks,
               const sampling::Welcome& welcome);

  WorkerWeights& weights() { return weights_; }

  // Begins a rollout with the newest weights, on the first rank. Returns the engine to use until end_rollout(); it has
  // no group in flight at either end.
  rollout::Engine& begin_rollout();
  void end_rollout();
  // Takes part in a whole rollout on the other ranks: does what the first rank's engine does. `says` is as in
  // rollout::follow().
  void follow_rollout(const std::function<bool()>& says);
  // Returns whether any rank says so. Only the first rank calls it, within a rollout.
  bool any_says(bool mine) { return leading_ ? leading_->any_says(mine) : mine; }

 private:
  void update();

  const config::TrainConfig& config_;
  session::ModelSession& session_;
  EngineRanks& ranks_;
  const plan::TrainPlan plan_;
  session::RunMemory memory_;
  WorkerWeights weights_;
  std::optional<session::OwnEngine> engine_;       // set once the first weights are there
  std::optional<rollout::LeadingEngine> leading_;  // set on a first rank that others follow
};

}  // namespace tandem::rollout_worker
