// Shared by the trainer's tests: a small model over its own weights, random groups of samples, and a model that watches
// what a trainer asks of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/ops.h"
#include "model/model.h"
#include "rl/sample.h"
#include "tests/model/test_model.h"
#include "trainer/trainer.h"
#include "weights/store.h"

namespace tandem::trainer {

// Returns the exact operations of this machine, on two threads.
inline const device::Ops& test_ops() { return model::test_ops(2); }
using model::reference_ops;
using model::TestModel;

// Makes three layers with random weights; the same for the same arguments.
TestModel make_small_model(at::ScalarType dtype, bool tied, const device::Ops& ops,
                           const std::string& architecture = "Qwen3ForCausalLM");

// Returns num_groups groups of `group_size` samples for the small model: random prompts, completions, old log-probs
// near those of a random model, advantages of both signs, some tokens masked.
std::vector<rl::Sample> random_samples(uint32_t seed, int num_groups, int group_size);
std::vector<const rl::Sample*> pointers(const std::vector<rl::Sample>& samples);

// Returns the optimizer's state of a Trainer or an AdamW, by names like "exp_avg.layers.0.qkv".
template <typename HasState>
std::map<std::string, at::Tensor> named_state(const HasState& optimizer) {
  std::map<std::string, at::Tensor> state;
  for (const OptimizerTensor& one : optimizer.state()) {
    state[std::string(to_string(one.kind)) + "." + one.packed->name] = one.tensor;
  }
  return state;
}

// Returns every gradient of the last step, by packed name.
std::map<std::string, at::Tensor> gradients(const Trainer& trainer, const weights::WeightStore& store);
// Returns max |a - b| / max |b|, over all tensors together.
double relative_difference(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b);

// Passes everything on and counts: blocks that were run, and rows of logits that are alive at once.
class WatchedModel final : public model::Model {
 public:
  explicit WatchedModel(model::Model& inner) : inner_(inner) {}

  int64_t num_block_runs() const { return num_block_runs_; }
  int64_t max_live_logit_rows() const { return max_live_logit_rows_; }
  int64_t num_logit_rows() const { return num_logit_rows_; }

  const model::ModelConfig& config() const override { return inner_.config(); }
  const device::Ops& ops() const override { return inner_.ops(); }
  at::ScalarType dtype() const override { return inner_.dtype(); }
  at::Tensor embed(const at::Tensor& ids_T) const override { return inner_.embed(ids_T); }
  at::Tensor block(int64_t layer, const at::Tensor& hidden_TE, const at::Tensor& positions_T,
                   model::Attention& attention) const override;
  at::Tensor final_norm(const at::Tensor& hidden_TE, int64_t num_tokens) const override {
    return inner_.final_norm(hidden_TE, num_tokens);
  }
  at::Tensor head(const at::Tensor& hidden_RE) const override;
  at::Tensor own_logits(const at::Tensor& logits_RV) const override { return inner_.own_logits(logits_RV); }
  const model::TensorRanks& ranks() const override { return inner_.ranks(); }
  void embed_backward(const at::Tensor& dhidden_TE, const at::Tensor& ids_T) const override {
    inner_.embed_backward(dhidden_TE, ids_T);
  }
  at::Tensor head_backward(const at::Tensor& dlogits_RV, const at::Tensor& hidden_RE) const override {
    return inner_.head_backward(dlogits_RV, hidden_RE);
  }
  void set_weights(const weights::WeightsView& view) override { inner_.set_weights(view); }
  uint64_t weight_version() const override { return inner_.weight_version(); }
  void set_gradient_sink(model::GradientSink* sink) override { inner_.set_gradient_sink(sink); }
  void set_routing_sink(model::RoutingSink* sink) override { inner_.set_routing_sink(sink); }
  void set_routing_loss(model::RoutingLoss* loss) override { inner_.set_routing_loss(loss); }
  void set_adapter_dropout(const model::AdapterDropout* dropout) override { inner_.set_adapter_dropout(dropout); }
  void share_experts(device::ExpertExchange* exchange) override { inner_.share_experts(exchange); }

 private:
  model::Model& inner_;
  mutable int64_t num_block_runs_ = 0, num_logit_rows_ = 0, max_live_logit_rows_ = 0;
  mutable std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> logits_;
};

}  // namespace tandem::trainer
