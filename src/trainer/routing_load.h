// Counts how a sparse model's routers spread the tokens of an optimizer step over the experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "device/ops.h"
#include "model/config.h"
#include "model/model.h"
#include "model/routing_sink.h"
#include "trainer/ranks.h"

namespace tandem::trainer {

// All sums are of integers, so that the numbers have the same bits for any number of ranks: tokens by layer and expert,
// and, by layer, entropies and largest weights in units of 2^-20. They are made on the device, and the host waits for
// them in end_step() alone.
class RoutingLoad final : public model::RoutingSink {
 public:
  // Ops is borrowed. `config` is that of a sparse model. `logs_layers`: end_step() gives numbers of each layer too.
  RoutingLoad(const model::ModelConfig& config, const device::Ops& ops, bool logs_layers = false);

  // Forgets the step before, and allocates routing_load_bytes().
  void begin_step();
  void routed(int64_t layer, const at::Tensor& logits_TX, const device::Routing& routing) override;
  // Returns the metrics of all ranks' tokens, and frees the memory. All ranks call it together. Of the layer where it
  // is largest: moe/load_max_over_mean, the tokens of the busiest expert over the mean of all experts, and
  // moe/unused_experts, how many no token chose. Means over tokens and layers: moe/router_entropy, in nats, of the
  // softmax over all experts' logits, and moe/top1_weight, the largest weight of a token's experts. There are none
  // where no token was routed. Numbers of a layer have its number, from 0, after the names of all layers':
  // moe/load_max_over_mean_layer_3.
  std::map<std::string, double> end_step(const Ranks& ranks);
  // Frees the memory after a step that was given up.
  void release() { sums_.reset(); }

 private:
  const device::Ops& ops_;
  const int64_t layers_, experts_, chosen_;
  const bool logs_layers_;
  at::Tensor sums_;  // int64 [L, X + 2]: tokens of each expert, then the sums of entropies and of largest weights
};

// Gives the model a sink for as long as this lives; null: none. Both are borrowed.
class RoutingSinkScope {
 public:
  RoutingSinkScope(model::Model& model, model::RoutingSink* sink) : model_(model) { model_.set_routing_sink(sink); }
  ~RoutingSinkScope() { model_.set_routing_sink(nullptr); }
  RoutingSinkScope(const RoutingSinkScope&) = delete;
  RoutingSinkScope& operator=(const RoutingSinkScope&) = delete;

 private:
  model::Model& model_;
};

}  // namespace tandem::trainer
