// The MLP of a sparse model: a router chooses experts for each token, and their weighted results are added up.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "device/expert_exchange.h"
#include "device/experts.h"
#include "device/ops.h"
#include "model/decoder/block.h"
#include "model/experts_linear.h"
#include "model/linear.h"
#include "model/routing_loss.h"
#include "model/routing_sink.h"

namespace tandem::model::decoder {

// Computes middle + sum over the token's experts of weight * down(silu(gate) * up); gate, up and the router's logits
// are products with the normalised middle. The formula is that of transformers' Qwen3MoeSparseMoeBlock, except that
// the logits stay float32 and the sum rounds once, with the middle: so trainer and engine choose the same experts.
//
// The weights' part in the backward is moved to before the products: with d the gradient of a token's sum, those of an
// expert's result are weight * d, and dweight is the product of d with that result, which is that of (d down) with
// silu(gate) * up. So the results of `down` are neither kept nor computed again.
//
// Over several tensor ranks each has a part of each expert's width, and all of the router: all choose alike. Ranks that
// share experts while they sample (device/expert_exchange.h) route the rows of all of them.
class SparseMlp final : public MlpPiece {
 public:
  explicit SparseMlp(const Layer& layer);
  void bind(const weights::WeightsView& view) override;
  at::Tensor forward(const at::Tensor& middle_TE, int64_t num_tokens) const override;

 private:
  // Computes what the chosen experts add to the residual, which may be undefined, with their adapters if they have any.
  device::Ops::ExpertsMlp experts(const at::Tensor& normed_TE, const device::Routing& routing,
                                  const at::Tensor& residual_TE, bool keeps_gate_up) const;
  // Returns the next hidden states of this rank's rows, whose experts all ranks of the exchange compute together.
  at::Tensor forward_shared(const at::Tensor& middle_TE, int64_t num_tokens) const;
  // Chooses the experts of normalised rows, and tells the sink.
  device::Routing route(const at::Tensor& normed_TE) const;
  // Returns the gradient of the middle, given that of the result.
  at::Tensor backward(const at::Tensor& dout_TE, const at::Tensor& middle_TE, const at::Tensor& gate_up_P2F,
                      const device::Routing& routing, int64_t num_tokens) const;
  // Returns what the stream keeps of the sum over places, and ranks, of part_PE, plus what it keeps of the residual.
  at::Tensor sum_of_gradients(const at::Tensor& part_PE, const device::Routing& routing,
                              const at::Tensor& residual_TE) const;
  // Returns the dtype of rows that are parts of sums over the ranks.
  at::ScalarType part_dtype(const at::Tensor& rows) const;
  // Returns the gradient of normed_TE through the router, and adds that of the router's weight to the sink.
  at::Tensor router_gradient(const at::Tensor& dweights_TC, const at::Tensor& normed_TE,
                             const device::Routing& routing) const;
  // Returns the gradient of the router's logits in the dtype of the model, given that of the weights of all ranks.
  at::Tensor logits_gradient(const at::Tensor& dweights_TC, const at::Tensor& normed_TE,
                             const device::Routing& routing) const;

  const device::Ops& ops_;
  const ResidualStream& stream_;
  const GradientSlot& sink_;
  RoutingSink* const& routing_sink_;
  RoutingLoss* const& routing_loss_;
  device::ExpertExchange* const& exchange_;
  const int64_t layer_;
  const device::RouteRule rule_;
  RmsNorm norm_;
  Linear router_;
  ExpertsLinear gate_up_, down_;
};

}  // namespace tandem::model::decoder
