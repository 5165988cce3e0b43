#include "model/decoder/sparse_mlp.h"

#include "base/check.h"
#include "model/autograd.h"

namespace tandem::model::decoder {

using at::Tensor;
using device::RowsAre;

SparseMlp::SparseMlp(const Layer& layer)
    : ops_(layer.ops),
      stream_(layer.stream),
      sink_(layer.sink),
      routing_sink_(layer.routing_sink),
      routing_loss_(layer.routing_loss),
      exchange_(layer.expert_exchange),
      layer_(layer.index),
      rule_{.chosen = layer.config.experts->chosen, .normalises = layer.config.experts->normalises},
      norm_(norm_of(layer, "post_norm")),
      router_(layer.linear("router", Cut::kNone)),
      gate_up_(layer.ops, layer.packed_name("experts_gate_up"), layer.adapter("experts_gate_up")),
      down_(layer.ops, layer.packed_name("experts_down"), layer.adapter("experts_down")) {}

void SparseMlp::bind(const weights::WeightsView& view) {
  norm_.bind(view);
  router_.bind(view);
  gate_up_.bind(view);
  down_.bind(view);
}

Tensor SparseMlp::forward(const Tensor& middle_TE, int64_t num_tokens) const {
  if (exchange_ != nullptr) return forward_shared(middle_TE, num_tokens);
  const bool keeps_gate_up = is_differentiated({middle_TE});
  return differentiable({middle_TE}, [&] {
    const Tensor normed_TE = norm_.forward(middle_TE, num_tokens);
    const device::Routing routing = route(normed_TE);
    // The middle joins the sum over places, or, where that is a part, the sum over the ranks.
    const bool is_alone = stream_.ranks().is_alone();
    const device::Ops::ExpertsMlp mlp = experts(normed_TE, routing, is_alone ? middle_TE : Tensor(), keeps_gate_up);
    const auto backward = [this, middle_TE, gate_up_P2F = mlp.gate_up_P2F, routing,
                           num_tokens](const Tensors& d) -> Tensors {
      return {this->backward(d[0], middle_TE, gate_up_P2F, routing, num_tokens)};
    };
    return Piece{{is_alone ? mlp.sum_TE : stream_.sum(mlp.sum_TE, middle_TE, middle_TE.scalar_type())}, backward};
  })[0];
}

Tensor SparseMlp::forward_shared(const Tensor& middle_TE, int64_t num_tokens) const {
  TANDEM_CHECK(!is_differentiated({middle_TE}) && stream_.ranks().is_alone() && gate_up_.is_plain() && down_.is_plain(),
               "only whole experts without an adapter are shared, not quantised, and only to sample");
  const Tensor rows_TE = exchange_->gather(norm_.forward(middle_TE, num_tokens));
  const device::Routing routing = route(rows_TE);
  const device::ExpertRange own = device::experts_of_rank(routing.num_experts(), exchange_->rank(), exchange_->size());
  const Tensor y_PE = exchange_->results(rows_TE, routing);
  ops_.results_of_experts(rows_TE, gate_up_.weight(), down_.weight(), routing, own, y_PE);
  return exchange_->sum(y_PE, routing, middle_TE);
}

device::Ops::ExpertsMlp SparseMlp::experts(const Tensor& normed_TE, const device::Routing& routing,
                                           const Tensor& residual_TE, bool keeps_gate_up) const {
  const at::ScalarType out = part_dtype(normed_TE);
  if (gate_up_.is_plain() && down_.is_plain()) {
    return ops_.mlp_of_experts(normed_TE, gate_up_.weight(), down_.weight(), routing, residual_TE, out, keeps_gate_up);
  }
  const Tensor gate_up_P2F = gate_up_.forward(normed_TE, RowsAre::kTokens, routing, normed_TE.scalar_type());
  const Tensor y_PE = down_.forward(ops_.silu_mul(gate_up_P2F), RowsAre::kPlaces, routing, out);
  return {.sum_TE = ops_.sum_of_experts(y_PE, routing.weights_TC, routing, residual_TE, out),
          .gate_up_P2F = gate_up_P2F};
}

device::Routing SparseMlp::route(const Tensor& normed_TE) const {
  const Tensor logits_TX = router_.forward(normed_TE, at::kFloat);
  device::Routing routing = ops_.route(logits_TX, rule_);
  if (routing_sink_ != nullptr) routing_sink_->routed(layer_, logits_TX, routing);
  return routing;
}

Tensor SparseMlp::backward(const Tensor& dout, const Tensor& middle_TE, const Tensor& gate_up_P2F,
                           const device::Routing& routing, int64_t num_tokens) const {
  const Tensor dout_TE = stream_.whole(dout, num_tokens), normed_TE = norm_.forward(middle_TE, num_tokens);
  const Tensor da_PF = down_.input_gradient(dout_TE, RowsAre::kTokens, routing, dout_TE.scalar_type());
  const device::Ops::WeightedSilu silu = ops_.weighted_silu_backward(da_PF, gate_up_P2F, routing);
  down_.add_weight_gradient(dout_TE, RowsAre::kTokens, silu.weighted_PF, RowsAre::kPlaces, routing, sink_);
  gate_up_.add_weight_gradient(silu.dgate_up_P2F, RowsAre::kPlaces, normed_TE, RowsAre::kTokens, routing, sink_);
  const Tensor of_router_TE = router_gradient(silu.dweights_TC, normed_TE, routing);
  const Tensor dx_PE = gate_up_.input_gradient(silu.dgate_up_P2F, RowsAre::kPlaces, routing, part_dtype(normed_TE));
  const Tensor dnormed_TE = sum_of_gradients(dx_PE, routing, stream_.kept(of_router_TE));
  return ops_.add(dout, norm_.backward(dnormed_TE, middle_TE, sink_));
}

// The weights of one rank's experts have a part of their gradient on each rank, and every rank goes on from the sum.
Tensor SparseMlp::router_gradient(const Tensor& dweights_TC, const Tensor& normed_TE,
                                  const device::Routing& routing) const {
  const Tensor sum_TC =
      stream_.ranks().is_alone() ? dweights_TC : stream_.ranks().sum(dweights_TC, /*residual=*/{}, at::kFloat);
  return router_.backward(logits_gradient(sum_TC, normed_TE, routing), normed_TE, sink_);
}

// Both gradients are added in float32, so that the sum rounds once.
Tensor SparseMlp::logits_gradient(const Tensor& dweights_TC, const Tensor& normed_TE,
                                  const device::Routing& routing) const {
  const Tensor logits_TX = router_.forward(normed_TE, at::kFloat);
  if (routing_loss_ == nullptr) {
    return ops_.route_backward(dweights_TC, logits_TX, routing, rule_, normed_TE.scalar_type());
  }
  const Tensor of_loss_TX = routing_loss_->logits_gradient(logits_TX, routing);
  return ops_.route_backward(dweights_TC, logits_TX, routing, rule_, at::kFloat)
      .add_(of_loss_TX)
      .to(normed_TE.scalar_type());
}

at::ScalarType SparseMlp::part_dtype(const Tensor& rows) const {
  return stream_.ranks().is_alone() ? rows.scalar_type() : at::kFloat;
}

Tensor SparseMlp::sum_of_gradients(const Tensor& part_PE, const device::Routing& routing,
                                   const Tensor& residual_TE) const {
  const at::ScalarType dtype = residual_TE.scalar_type();
  if (stream_.ranks().is_alone()) return ops_.sum_of_experts(part_PE, /*weights_TC=*/{}, routing, residual_TE, dtype);
  const Tensor part_TE = ops_.sum_of_experts(part_PE, /*weights_TC=*/{}, routing, /*residual_TE=*/{}, at::kFloat);
  return stream_.sum(part_TE, residual_TE, dtype);
}

}  // namespace tandem::model::decoder
