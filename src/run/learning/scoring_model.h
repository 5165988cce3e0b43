// A model that only scores: the KL reference, a teacher, or a reward model. Its weights stay on the device, or lie in
// pinned host memory and are on the device only while they are needed.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "device/host_memory.h"
#include "model/model.h"
#include "session/model_session.h"
#include "session/run_memory.h"
#include "trainer/score.h"
#include "weights/layout.h"
#include "weights/offloaded_store.h"

namespace tandem::run {

class ScoringModel {
 public:
  // Makes the model `config`, of any family and size, over weights of its own, which `fill` writes into a store without
  // storage. It computes in the session's dtype on the session's device, with its part of the model where the session
  // has one. Borrows the session; the ledger records what lasts.
  ScoringModel(const session::ModelSession& session, const model::ModelConfig& config, bool is_offloaded,
               const std::function<void(weights::WeightStore&)>& fill, session::RunMemory& memory);
  // Does the same with a layout that ignores more of a directory's tensors than the model's own.
  ScoringModel(const session::ModelSession& session, const model::ModelConfig& config, weights::Layout layout,
               bool is_offloaded, const std::function<void(weights::WeightStore&)>& fill, session::RunMemory& memory);
  // Makes it over weights that others keep.
  ScoringModel(const session::ModelSession& session, const model::ModelConfig& config,
               const weights::WeightsView& view);
  // Makes it over those and an adapter of its own, which is filled already.
  ScoringModel(const session::ModelSession& session, const model::ModelConfig& config, const weights::WeightsView& base,
               std::unique_ptr<weights::WeightStore> adapter, session::RunMemory& memory);

  // Keeps the weights on the device for as long as it lives, and lets them leave however it ends. Scopes of one model
  // do not nest; of weights that always stay it does nothing.
  class OnDeviceScope {
   public:
    explicit OnDeviceScope(ScoringModel& owner);
    ~OnDeviceScope();
    OnDeviceScope(const OnDeviceScope&) = delete;
    OnDeviceScope& operator=(const OnDeviceScope&) = delete;

   private:
    ScoringModel& owner_;
    std::unique_ptr<const weights::OffloadedStore::OnDeviceScope> visit_;
  };

  // Scores as trainer::score() does. Offloaded weights are on the device for the call.
  trainer::Scores score(const std::vector<const rl::Sample*>& samples, const trainer::BatchConfig& batch,
                        double temperature, const trainer::Ranks& ranks);
  // Computes with weights that are on the device: within a scope.
  const model::Model& model() const { return *model_; }
  // Returns the permanent place of the model's own weights, which it must have.
  const weights::WeightStore& home() const { return offloaded_ ? offloaded_->host() : *resident_; }

 private:
  std::unique_ptr<weights::WeightStore> resident_;
  std::unique_ptr<device::HostMemory> host_memory_;
  std::optional<weights::OffloadedStore> offloaded_;
  std::unique_ptr<model::Model> model_;
};

}  // namespace tandem::run
