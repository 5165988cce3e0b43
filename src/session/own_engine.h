// The engine of a process that samples for a training run, over the session's weights.
#pragma once

#include <memory>
#include <optional>

#include "config/train_config.h"
#include "device/expert_exchange.h"
#include "mesh/mesh.h"
#include "model/model.h"
#include "plan/plan.h"
#include "rollout/engine.h"
#include "rollout/shared_steps.h"
#include "session/model_session.h"
#include "session/run_memory.h"

namespace tandem::session {

class OwnEngine {
 public:
  // Builds the engine over loaded weights; its KV cache lies in the memory's arena. All arguments are borrowed. Where
  // `sharing` is set, its ranks build theirs together, and share experts; EnvironmentError where their devices cannot.
  OwnEngine(const config::TrainConfig& config, ModelSession& session, const plan::TrainPlan& plan,
            const RunMemory& memory, const std::optional<mesh::Group>& sharing = std::nullopt);

  rollout::Engine& engine() { return *engine_; }
  // Continues with the weights that are in the session's store now.
  void update_weights() { engine_->update_weights(session_.view()); }

 private:
  // An exchange of experts between ranks, and the steps that it makes possible.
  struct Sharing {
    Sharing(const config::TrainConfig& config, const ModelSession& session, const mesh::Group& ranks);
    const std::unique_ptr<device::ExpertExchange> exchange;
    rollout::SharedSteps steps;
  };

  const ModelSession& session_;
  std::optional<Sharing> sharing_;
  const std::unique_ptr<model::Model> model_;
  std::unique_ptr<rollout::Engine> engine_;
};

}  // namespace tandem::session
