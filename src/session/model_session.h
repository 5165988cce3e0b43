// A checkpoint made ready to compute with: its shape, device, tokenizer and weights, each loaded once and in the order
// in which mistakes are cheapest to find.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "config/lora_options.h"
#include "config/model_options.h"
#include "config/optimizer_options.h"
#include "config/rollout_options.h"
#include "device/communicator.h"
#include "device/ops.h"
#include "device/registry.h"
#include "mesh/mesh.h"
#include "model/dtype.h"
#include "model/model.h"
#include "rollout/engine.h"
#include "session/read_model.h"
#include "text/text_worker.h"
#include "weights/store.h"

namespace tandem::session {

class ModelSession {
 public:
  // Reads the configuration, starts the tokenizer and the device. No weights are read yet. Throws UserError when the
  // tokenizer has ids that the model does not have.
  explicit ModelSession(const config::ModelOptions& options);
  // Makes the session of a run that trains what `lora` and `optimizer` say (read_model()). If a tensor-parallel group
  // shares the model, the session has this rank's part; the group's communicators are borrowed.
  ModelSession(const config::ModelOptions& options, const config::LoraOptions& lora,
               const config::OptimizerOptions& optimizer, const std::optional<mesh::Group>& replica = std::nullopt);

  // Checks the weights' files without reading weights: throws UserError for what load_weights() would refuse.
  void check_weights() const;
  // Reads (or draws) the weights, and the adapter if there is one. Call it once.
  void load_weights();
  // Allocates both uninitialised instead, for weights that another process sends. Call it once.
  void allocate_weights();
  // Returns a store of this model on its device, without storage. read_weights() reads the weights at the start into
  // one.
  weights::WeightStore empty_store() const;
  void read_weights(weights::WeightStore& store) const;
  // Returns the same for the adapter of a session that has one.
  weights::WeightStore empty_adapter() const;

  // Returns the configuration of this rank's part.
  const model::ModelConfig& config() const { return config_; }
  // Returns the directory of the model's files; for an adapter, that of its base.
  const std::string& directory() const { return place_.directory; }
  const device::DeviceSpec& device() const { return device_; }
  const device::Ops& ops() const { return *ops_; }
  text::TextWorker& text() { return *text_; }
  // Returns the weights, without an adapter.
  weights::WeightStore& base() const { return *base_; }
  // Returns what is trained, and whose version counts updates: the adapter if there is one, else the weights.
  weights::WeightStore& trained() const { return adapter_ ? *adapter_ : *base_; }
  at::ScalarType dtype() const { return model::scalar_type(config_.dtype); }
  int64_t bytes() const { return base_->bytes() + (adapter_ ? adapter_->bytes() : 0); }  // both, once loaded

  // Returns the weights with the adapter, at the version of what is trained; and a model over them.
  weights::WeightsView view() const;
  std::unique_ptr<model::Model> make_model() const { return make_model(config_, view()); }
  // Makes a model over other weights, or as a trainer computes it: `config` is config(), except for the adapter and
  // TensorShard::sequence_parallel; or another model's, with this session's dtype and its part (a teacher).
  std::unique_ptr<model::Model> make_model(const model::ModelConfig& config, const weights::WeightsView& view) const;
  // Writes what is trained as a directory for other programs: the model, or an adapter in PEFT's format. The ranks of a
  // tensor-parallel group call it together, with a communicator of their hosts, and their rank 0 writes.
  void export_trained(const std::string& directory, device::Communicator& replica) const;
  // Describes the first weight that is damaged (weights/not_finite.h); "" if there is none.
  std::string describe_not_finite() const;
  // Tells why the model gave numbers that are not finite: the end of an error's line.
  std::string why_not_finite() const;
  // Returns the engine's configuration, with the token table only if stop texts need it: those of `options`, or, with
  // `has_other_stops`, those that calls of a function or requests bring. It is valid while the session lives.
  rollout::EngineConfig engine_config(const config::RolloutOptions& options, int64_t num_kv_blocks,
                                      bool has_other_stops = false);

  // Returns EngineConfig::check_ranks of an engine that computes with these ranks, which are borrowed.
  static std::function<void()> check_of(device::Communicator& ranks);

 private:
  ModelSession(const config::ModelOptions& options, ModelPlace place, model::ModelConfig config,
               const std::optional<mesh::Group>& replica);
  void load_adapter();
  void warn_of_other_tokenizer() const;

  config::ModelOptions options_;
  ModelPlace place_;
  std::optional<mesh::Group> replica_;
  model::ModelConfig config_;
  device::DeviceSpec device_;
  std::unique_ptr<device::Ops> ops_;
  std::unique_ptr<text::TextWorker> text_;
  std::unique_ptr<weights::WeightStore> base_, adapter_;  // adapter_ is null if there is none
};

}  // namespace tandem::session
