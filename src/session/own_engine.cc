#include "session/own_engine.h"

namespace tandem::session {

namespace {

std::unique_ptr<rollout::Engine> make_engine(const config::TrainConfig& train, ModelSession& session,
                                             const plan::TrainPlan& plan, const RunMemory& memory,
                                             model::Model& model) {
  rollout::EngineConfig config = session.engine_config(train.rollout, plan.num_kv_blocks);
  config.kv_memory = memory.kv();
  // Any call of a function may have stop texts.
  if (train.custom_generate.is_on()) config.token_bytes = session.text().token_bytes();
  return rollout::make_engine(config, model);
}

}  // namespace

OwnEngine::OwnEngine(const config::TrainConfig& config, ModelSession& session, const plan::TrainPlan& plan,
                     const RunMemory& memory)
    : session_(session), model_(session.make_model()), engine_(make_engine(config, session, plan, memory, *model_)) {}

}  // namespace tandem::session
