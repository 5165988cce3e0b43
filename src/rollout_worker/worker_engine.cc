#include "rollout_worker/worker_engine.h"

#include "device/registry.h"
#include "session/plan_together.h"

namespace tandem::rollout_worker {

namespace {

plan::TrainPlan plan_of(const config::TrainConfig& config, const session::ModelSession& session, EngineRanks& ranks,
                        const sampling::Welcome& welcome) {
  const plan::PlanInputs facts = {.longest_prompt = welcome.longest_prompt,
                                  .eval_context_tokens = welcome.eval_context_tokens,
                                  .eval_sequences = welcome.eval_sequences,
                                  .role = plan::Role::kRollout};
  const plan::DeviceMemory device = plan::device_memory(config, device::device_bytes(session.device()));
  return session::plan_together(config, session.config(), facts, device, ranks.hosts());
}

const session::ModelSession& with_memory(session::ModelSession& session, session::RunMemory& memory) {
  session.allocate_weights();
  memory.add_persistent(memory::Tag::kWeights, session.bytes());
  return session;
}

}  // namespace

WorkerEngine::WorkerEngine(const config::TrainConfig& config, session::ModelSession& session, EngineRanks& ranks,
                           const sampling::Welcome& welcome)
    : config_(config),
      session_(session),
      ranks_(ranks),
      plan_(plan_of(config, session, ranks, welcome)),
      memory_(config.memory, plan_, session.device()),
      weights_(with_memory(session, memory_), ranks, welcome) {
  if (weights_.maps()) {
    if (plan_.second_copy_bytes > 0) memory_.add_persistent(memory::Tag::kWeights, weights_.allocate_second_copy());
  } else if (config.async.is_live(config.colocate) && ranks.is_first() && session.ops().is_on_host()) {
    // New weights wait in the host's memory until the samplers pause (WeightLinks).
    memory_.add_persistent(memory::Tag::kWeights, session.trained().bytes() * ranks.size());
  }
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

}  // namespace tandem::rollout_worker
