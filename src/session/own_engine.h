// The engine of a process that samples for a training run, over the session's weights.
#pragma once

#include <memory>

#include "config/train_config.h"
#include "model/model.h"
#include "plan/plan.h"
#include "rollout/engine.h"
#include "session/model_session.h"
#include "session/run_memory.h"

namespace tandem::session {

class OwnEngine {
 public:
  // Builds the engine over loaded weights; its KV cache lies in the memory's arena. All arguments are borrowed.
  OwnEngine(const config::TrainConfig& config, ModelSession& session, const plan::TrainPlan& plan,
            const RunMemory& memory);

  rollout::Engine& engine() { return *engine_; }
  // Continues with the weights that are in the session's store now.
  void update_weights() { engine_->update_weights(session_.view()); }

 private:
  const ModelSession& session_;
  const std::unique_ptr<model::Model> model_;
  const std::unique_ptr<rollout::Engine> engine_;
};

}  // namespace tandem::session
