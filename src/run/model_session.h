// A checkpoint made ready to compute with: its shape, device, tokenizer and weights, each loaded once and in the order
// in which mistakes are cheapest to find.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "config/model_options.h"
#include "config/rollout_options.h"
#include "device/ops.h"
#include "device/registry.h"
#include "model/dtype.h"
#include "model/model.h"
#include "rollout/engine.h"
#include "text/text_worker.h"
#include "weights/store.h"

namespace tandem::run {

class ModelSession {
 public:
  // Reads the configuration, starts the tokenizer and the device. No weights yet. UserError when the tokenizer has ids
  // that the model has not.
  explicit ModelSession(const config::ModelOptions& options);

  // What can be said of the weights' files without reading weights: UserError for what load_weights() would refuse.
  void check_weights() const;
  // Reads (or draws) the weights. Once.
  void load_weights();
  // A store of this model on its device, without storage; and the weights as they are at the start, read into one.
  weights::WeightStore empty_store() const;
  void read_weights(weights::WeightStore& store) const;

  const model::ModelConfig& config() const { return config_; }
  const std::string& directory() const { return options_.hf_checkpoint; }
  const device::DeviceSpec& device() const { return device_; }
  const device::Ops& ops() const { return *ops_; }
  text::TextWorker& text() { return *text_; }
  weights::WeightStore& store() const { return *store_; }
  at::ScalarType dtype() const { return model::scalar_type(config_.dtype); }
  int64_t weight_bytes() const;

  // A model over this session's weights.
  std::unique_ptr<model::Model> make_model() const;
  // Why it gave numbers that are not finite: the end of an error's line.
  std::string why_not_finite() const;
  // The token table goes along only where stop texts need it. Valid while the session lives.
  rollout::EngineConfig engine_config(const config::RolloutOptions& options, int64_t num_kv_blocks);

 private:
  void warn_of_other_tokenizer() const;

  config::ModelOptions options_;
  model::ModelConfig config_;
  device::DeviceSpec device_;
  std::unique_ptr<device::Ops> ops_;
  std::unique_ptr<text::TextWorker> text_;
  std::unique_ptr<weights::WeightStore> store_;
};

}  // namespace tandem::run
