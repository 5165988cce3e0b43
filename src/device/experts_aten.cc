#include "device/experts_aten.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "device/sum_by_halves.h"
#include "device/transfer.h"

namespace tandem::device::experts_aten {

using at::Tensor;

namespace {

// Adds up columns 0, 1, 2, ... one after the other: [T, C] to [T, 1].
Tensor sum_in_order(const Tensor& x_TC) {
  Tensor sum = x_TC.narrow(1, 0, 1).clone();
  for (int64_t c = 1; c < x_TC.size(1); ++c) sum.add_(x_TC.narrow(1, c, 1));
  return sum;
}

// The terms of a softmax over a row of logits, and their sum. 0 times the smallest and the largest logit is NaN where
// one is not finite, and then so is the sum.
struct Softmax {
  Tensor exponentials, sum_T1;
};
Softmax softmax(const Tensor& logits_TN, const Tensor& logits_TX) {
  const Tensor largest_T1 = logits_TX.amax(-1, /*keepdim=*/true), smallest_T1 = logits_TX.amin(-1, /*keepdim=*/true);
  Tensor exponentials = at::exp(logits_TN - largest_T1);
  const Tensor not_finite_T1 = smallest_T1.mul(0.0F).add_(largest_T1, 0.0F);
  return {exponentials, sum_by_halves(exponentials.clone()).add_(not_finite_T1)};
}

Softmax softmax_of_rule(const Tensor& logits_TX, const Tensor& wide_ids_TC, const RouteRule& rule) {
  return softmax(rule.normalises ? at::gather(logits_TX, 1, wide_ids_TC) : logits_TX, logits_TX);
}

// Returns the chosen experts, int64, rising in a row. Adding 0 makes 0 of -0, and the sort is stable: of equal logits
// that of the lower id comes first.
Tensor choose(const Tensor& logits_TX, const RouteRule& rule) {
  const auto sorted = at::sort(logits_TX + 0.0F, /*stable=*/true, /*dim=*/1, /*descending=*/true);
  const Tensor chosen_TC = std::get<1>(sorted).narrow(1, 0, rule.chosen);
  return std::get<0>(at::sort(chosen_TC, /*dim=*/1, /*descending=*/false)).contiguous();
}

Tensor weights_of(const Tensor& logits_TX, const Tensor& wide_ids_TC, const RouteRule& rule) {
  const Softmax all = softmax_of_rule(logits_TX, wide_ids_TC, rule);
  return (rule.normalises ? all.exponentials : at::gather(all.exponentials, 1, wide_ids_TC)).div(all.sum_T1);
}

void order_places(Routing& routing, int64_t num_experts) {
  const auto [sorted_P, sources_P] =
      at::sort(routing.ids_TC.flatten(), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const auto options = routing.ids_TC.options();
  const Tensor bounds_X1 = at::arange(num_experts + 1, options);
  routing.offsets_X1 = at::searchsorted(sorted_P.contiguous(), bounds_X1, /*out_int32=*/true);
  routing.sources_P = sources_P.to(at::kInt);
  const Tensor places_P = at::arange(sources_P.size(0), options);
  routing.places_TC = at::empty_like(routing.ids_TC);
  routing.places_TC.view(-1).scatter_(0, sources_P, places_P);
}

Tensor rows_of_places(const Tensor& x, RowsAre rows, const Routing& routing) {
  if (rows == RowsAre::kPlaces) return x;
  return x.index_select(0, routing.sources_P.div(routing.num_chosen(), "floor"));
}

// Calls f(e, first, count) for each expert with its places.
template <typename Function>
void for_each_expert(const Routing& routing, Function f) {
  const Tensor offsets_X1 = to_host(routing.offsets_X1);
  const auto* const offsets = offsets_X1.const_data_ptr<int32_t>();
  for (int64_t e = 0; e < routing.num_experts(); ++e) f(e, offsets[e], offsets[e + 1] - offsets[e]);
}

Tensor weights_of_expert(const Tensor& w_XNK, int64_t e, int64_t num_experts) {
  const int64_t rows = w_XNK.size(0) / num_experts;
  return w_XNK.narrow(0, e * rows, rows);
}

}  // namespace

Routing route(const Tensor& logits_TX, const RouteRule& rule) {
  const Tensor wide_ids_TC = choose(logits_TX, rule);
  Routing routing;
  routing.ids_TC = wide_ids_TC.to(at::kInt);
  routing.weights_TC = weights_of(logits_TX, wide_ids_TC, rule);
  order_places(routing, logits_TX.size(1));
  return routing;
}

// With the weights w of the chosen experts and their gradients g, and s = sum of w g: the logit of a chosen expert has
// w g, less its probability times s. Where the weights are normalised, they are the probabilities.
Tensor route_backward(const Tensor& dweights_TC, const Tensor& logits_TX, const Routing& routing, const RouteRule& rule,
                      at::ScalarType out) {
  const Tensor wide_ids_TC = routing.ids_TC.to(at::kLong);
  const Tensor terms_TC = routing.weights_TC * dweights_TC, sum_T1 = sum_in_order(terms_TC);
  Tensor dlogits_TX;
  if (rule.normalises) {
    dlogits_TX = at::zeros_like(logits_TX);
    dlogits_TX.scatter_(1, wide_ids_TC, routing.weights_TC * (dweights_TC - sum_T1));
  } else {
    const Softmax all = softmax_of_rule(logits_TX, wide_ids_TC, rule);
    dlogits_TX = at::div(all.exponentials, all.sum_T1).mul_(sum_T1).neg_();
    dlogits_TX.scatter_add_(1, wide_ids_TC, terms_TC);
  }
  return dlogits_TX.to(out);
}

Tensor linear(const Ops& ops, const Tensor& x, RowsAre x_rows, const Tensor& w_XNK, const Routing& routing,
              at::ScalarType out) {
  const Tensor x_PK = rows_of_places(x, x_rows, routing);
  Tensor y_PN = at::empty({routing.num_places(), w_XNK.size(0) / routing.num_experts()}, x.options().dtype(out));
  for_each_expert(routing, [&](int64_t e, int64_t first, int64_t count) {
    if (count == 0) return;
    const Tensor w_NK = weights_of_expert(w_XNK, e, routing.num_experts());
    y_PN.narrow(0, first, count).copy_(ops.linear(x_PK.narrow(0, first, count), w_NK, out));
  });
  return y_PN;
}

Tensor linear_grad_input(const Ops& ops, const Tensor& dy, RowsAre dy_rows, const Tensor& w_XNK, const Routing& routing,
                         at::ScalarType out) {
  const Tensor dy_PN = rows_of_places(dy, dy_rows, routing);
  Tensor dx_PK = at::empty({routing.num_places(), w_XNK.size(1)}, dy.options().dtype(out));
  for_each_expert(routing, [&](int64_t e, int64_t first, int64_t count) {
    if (count == 0) return;
    const Tensor w_NK = weights_of_expert(w_XNK, e, routing.num_experts());
    dx_PK.narrow(0, first, count).copy_(ops.linear_grad_input(dy_PN.narrow(0, first, count), w_NK, out));
  });
  return dx_PK;
}

void linear_grad_weight(const Ops& ops, const Tensor& dy, RowsAre dy_rows, const Tensor& x, RowsAre x_rows,
                        const Tensor& dw_XNK, const Routing& routing, GradientUse use) {
  const Tensor dy_PN = rows_of_places(dy, dy_rows, routing), x_PK = rows_of_places(x, x_rows, routing);
  for_each_expert(routing, [&](int64_t e, int64_t first, int64_t count) {
    const Tensor dw_NK = weights_of_expert(dw_XNK, e, routing.num_experts());
    if (count > 0) {
      ops.linear_grad_weight(dy_PN.narrow(0, first, count), x_PK.narrow(0, first, count), dw_NK, use);
    } else if (use == GradientUse::kSet) {
      dw_NK.zero_();
    }
  });
}

Tensor sum(const Tensor& y_PE, const Tensor& weights_TC, const Routing& routing, const Tensor& residual_TE,
           at::ScalarType out) {
  Tensor sum_TE = at::zeros({routing.num_tokens(), y_PE.size(1)}, y_PE.options().dtype(at::kFloat));
  for (int64_t c = 0; c < routing.num_chosen(); ++c) {
    const Tensor rows_TE = y_PE.index_select(0, routing.places_TC.select(1, c)).to(at::kFloat);
    sum_TE.add_(weights_TC.defined() ? rows_TE * weights_TC.narrow(1, c, 1) : rows_TE);
  }
  if (residual_TE.defined()) sum_TE.add_(residual_TE);
  return sum_TE.to(out);
}

Ops::WeightedSilu weighted_silu_backward(const Tensor& da_PF, const Tensor& gate_up_P2F, const Routing& routing) {
  const int64_t width = da_PF.size(1);
  const Tensor gate = gate_up_P2F.narrow(1, 0, width).to(at::kFloat);
  const Tensor up = gate_up_P2F.narrow(1, width, width).to(at::kFloat);
  const Tensor weight_P1 = routing.weights_TC.view(-1).index_select(0, routing.sources_P).unsqueeze(1);
  const Tensor da = da_PF.to(at::kFloat), sigmoid = at::sigmoid(gate), activated = (sigmoid * gate).mul_(up);
  Ops::WeightedSilu result;
  result.weighted_PF = (activated * weight_P1).to(da_PF.scalar_type());
  const Tensor dweights_P = sum_by_halves(activated.mul_(da)).flatten();
  result.dweights_TC = dweights_P.index_select(0, routing.places_TC.flatten()).view_as(routing.places_TC);
  const Tensor d = da * weight_P1;
  result.dgate_up_P2F = at::empty_like(gate_up_P2F);
  result.dgate_up_P2F.narrow(1, width, width).copy_((d * gate).mul_(sigmoid));
  const Tensor slope = (1.0 - sigmoid).mul_(gate).add_(1.0);  // derivative of silu, divided by sigmoid
  result.dgate_up_P2F.narrow(1, 0, width).copy_(slope.mul_(sigmoid).mul_(up).mul_(d));
  return result;
}

}  // namespace tandem::device::experts_aten
