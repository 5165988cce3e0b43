#include "run/learning/scoring_model.h"

#include <utility>

#include "model/registry.h"

namespace tandem::run {

ScoringModel::ScoringModel(const session::ModelSession& session, const model::ModelConfig& config, bool is_offloaded,
                           const std::function<void(weights::WeightStore&)>& fill, session::RunMemory& memory)
    : ScoringModel(session, config, model::build_layout(config), is_offloaded, fill, memory) {}

ScoringModel::ScoringModel(const session::ModelSession& session, const model::ModelConfig& config,
                           weights::Layout layout, bool is_offloaded,
                           const std::function<void(weights::WeightStore&)>& fill, session::RunMemory& memory) {
  const device::Ops& ops = session.ops();
  if (is_offloaded) {
    host_memory_ = memory.make_host();
    offloaded_.emplace(std::move(layout), session.dtype(), ops.device(), *host_memory_);
    fill(offloaded_->host());
    if (ops.is_on_host()) memory.add_persistent(memory::Tag::kReference, offloaded_->host().bytes());
  } else {
    resident_ = std::make_unique<weights::WeightStore>(
        weights::WeightStore::without_storage(std::move(layout), session.dtype(), ops.device()));
    fill(*resident_);
    memory.add_persistent(memory::Tag::kReference, resident_->bytes());
  }
  model_ = session.make_model(config, home().view());
}

ScoringModel::ScoringModel(const session::ModelSession& session, const model::ModelConfig& config,
                           const weights::WeightsView& view)
    : model_(session.make_model(config, view)) {}

ScoringModel::ScoringModel(const session::ModelSession& session, const model::ModelConfig& config,
                           const weights::WeightsView& base, std::unique_ptr<weights::WeightStore> adapter,
                           session::RunMemory& memory)
    : resident_(std::move(adapter)), model_(session.make_model(config, base.with(resident_->view()))) {
  memory.add_persistent(memory::Tag::kReference, resident_->bytes());
}

ScoringModel::OnDeviceScope::OnDeviceScope(ScoringModel& owner) : owner_(owner) {
  if (!owner.offloaded_) return;
  visit_.reset(new weights::OffloadedStore::OnDeviceScope(owner.offloaded_->to_device()));
  owner.model_->set_weights(visit_->store().view());
}

// The model lets go of the device's tensors before the visit ends.
ScoringModel::OnDeviceScope::~OnDeviceScope() {
  if (visit_) owner_.model_->set_weights(owner_.home().view());
}

trainer::Scores ScoringModel::score(const std::vector<const rl::Sample*>& samples, const trainer::BatchConfig& batch,
                                    double temperature, const trainer::Ranks& ranks) {
  const OnDeviceScope here(*this);
  return trainer::score(*model_, samples, batch, temperature, ranks);
}

}  // namespace tandem::run
