// What a process that only samples samples with, as the run needs it: weights that come from the run, memory, and an
// engine. Where several processes hold the model between them each has one over its part, and all make the same calls.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "config/train_config.h"
#include "plan/plan.h"
#include "rollout/replica.h"
#include "sampling/engine_ranks.h"
#include "sampling/messages.h"
#include "sampling/worker_weights.h"
#include "session/model_session.h"
#include "session/own_engine.h"
#include "session/run_memory.h"

namespace tandem::sampling {

class WorkerEngine {
 public:
  // Plans and takes the memory, and maps the run's weights if it can. All borrowed; the session has no weights yet.
  // UserError where the plan does not fit; EnvironmentError where it does not on another rank.
  WorkerEngine(const config::TrainConfig& config, session::ModelSession& session, EngineRanks& ranks,
               const Welcome& welcome);

  WorkerWeights& weights() { return weights_; }

  // A rollout begins, with the newest weights. On the first rank: the engine that is asked until end_rollout(), without
  // a group in flight at both ends.
  rollout::Engine& begin_rollout();
  void end_rollout();
  // The same on the other ranks, in one: does what the first one's engine is asked. `says` as in rollout::follow().
  void follow_rollout(const std::function<bool()>& says);
  // On the first rank, within a rollout: whether a rank says so.
  bool any_says(bool mine) { return leading_ ? leading_->any_says(mine) : mine; }

 private:
  void update();

  const config::TrainConfig& config_;
  session::ModelSession& session_;
  EngineRanks& ranks_;
  const plan::TrainPlan plan_;
  session::RunMemory memory_;
  WorkerWeights weights_;
  std::optional<session::OwnEngine> engine_;       // from the first weights on
  std::optional<rollout::LeadingEngine> leading_;  // of a first rank that others follow
};

}  // namespace tandem::sampling
