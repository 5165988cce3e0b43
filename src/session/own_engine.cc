#include "session/own_engine.h"

#include "rollout/rollout_plan.h"

namespace tandem::session {

namespace {

std::unique_ptr<device::ExpertExchange> make_exchange(const config::TrainConfig& config, const ModelSession& session,
                                                      const mesh::Group& ranks) {
  const model::ModelConfig& model = session.config();
  return device::make_expert_exchange(session.ops(), ranks.device, ranks.host,
                                      {.experts = model.experts->count,
                                       .chosen = model.experts->chosen,
                                       .hidden = model.hidden,
                                       .most_rows = rollout::most_shared_rows(config.rollout.limits),
                                       .dtype = session.dtype()});
}

std::unique_ptr<rollout::Engine> make_engine(const config::TrainConfig& train, ModelSession& session,
                                             const plan::TrainPlan& plan, const RunMemory& memory, model::Model& model,
                                             const std::optional<mesh::Group>& sharing,
                                             rollout::SharedSteps* shared_steps) {
  rollout::EngineConfig config =
      session.engine_config(train.rollout, plan.num_kv_blocks, /*has_other_stops=*/train.custom_generate.is_on());
  config.kv_memory = memory.kv();
  config.shared_steps = shared_steps;
  if (sharing && session.ops().runs_ahead()) config.check_ranks = ModelSession::check_of(sharing->device);
  return rollout::make_engine(config, model);
}

}  // namespace

OwnEngine::Sharing::Sharing(const config::TrainConfig& config, const ModelSession& session, const mesh::Group& ranks)
    : exchange(make_exchange(config, session, ranks)), steps(ranks.host, *exchange) {}

OwnEngine::OwnEngine(const config::TrainConfig& config, ModelSession& session, const plan::TrainPlan& plan,
                     const RunMemory& memory, const std::optional<mesh::Group>& sharing)
    : session_(session), model_(session.make_model()) {
  if (sharing) sharing_.emplace(config, session, *sharing);
  engine_ = make_engine(config, session, plan, memory, *model_, sharing, sharing_ ? &sharing_->steps : nullptr);
}

}  // namespace tandem::session
