#include "run/worker_engine.h"

#include "device/registry.h"
#include "run/plan_together.h"

namespace tandem::run {

namespace {

plan::TrainPlan plan_of(const config::TrainConfig& config, const ModelSession& session, EngineRanks& ranks,
                        const Welcome& welcome) {
  const plan::PlanInputs facts = {.longest_prompt = welcome.longest_prompt,
                                  .eval_context_tokens = welcome.eval_context_tokens,
                                  .eval_sequences = welcome.eval_sequences,
                                  .role = plan::Role::kRollout};
  const plan::DeviceMemory device = plan::device_memory(config, device::device_bytes(session.device()));
  return plan_together(config, session.config(), facts, device, ranks.hosts());
}

const ModelSession& with_memory(ModelSession& session, RunMemory& memory) {
  session.allocate_weights();
  memory.add_persistent(memory::Tag::kWeights, session.bytes());
  return session;
}

}  // namespace

WorkerEngine::WorkerEngine(const config::TrainConfig& config, ModelSession& session, EngineRanks& ranks,
                           const Welcome& welcome)
    : config_(config),
      session_(session),
      ranks_(ranks),
      plan_(plan_of(config, session, ranks, welcome)),
      memory_(config.memory, plan_, session.device()),
      weights_(with_memory(session, memory_), ranks, welcome) {
  memory_.enter(memory::Phase::kRollout);
}

void WorkerEngine::update() {
  if (!engine_) engine_.emplace(config_, session_, plan_, memory_);
  engine_->update_weights();
}

rollout::Engine& WorkerEngine::begin_rollout() {
  update();
  if (ranks_.size() == 1) return engine_->engine();
  if (!leading_) leading_.emplace(engine_->engine(), ranks_.hosts());
  return *leading_;
}

void WorkerEngine::end_rollout() {
  if (leading_) leading_->end();
}

void WorkerEngine::follow_rollout(const std::function<bool()>& says) {
  update();
  rollout::follow(engine_->engine(), ranks_.hosts(), says);
}

}  // namespace tandem::run
