#include "device/cpu/cpu_experts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "device/cpu/tensor_data.h"

namespace tandem::device::cpu {

using at::Tensor;

namespace {

constexpr int64_t kRowChunk = 64;  // rows that a thread takes at a time

const int32_t* words(const Tensor& x) { return static_cast<const int32_t*>(in(x)); }
const float* floats(const Tensor& x) { return static_cast<const float*>(in(x)); }

void order_places(Routing& routing, int64_t num_experts) {
  const int64_t num_places = routing.ids_TC.numel();
  const int32_t* const ids = words(routing.ids_TC);
  routing.offsets_X1 = at::empty({num_experts + 1}, routing.ids_TC.options());
  routing.places_TC = at::empty_like(routing.ids_TC);
  routing.sources_P = at::empty({num_places}, routing.ids_TC.options());
  auto* const offsets = routing.offsets_X1.data_ptr<int32_t>();
  auto* const places = routing.places_TC.data_ptr<int32_t>();
  auto* const sources = routing.sources_P.data_ptr<int32_t>();
  std::fill_n(offsets, num_experts + 1, 0);
  for (int64_t i = 0; i < num_places; ++i) ++offsets[ids[i] + 1];
  for (int64_t e = 0; e < num_experts; ++e) offsets[e + 1] += offsets[e];
  std::vector<int32_t> next(offsets, offsets + num_experts);
  for (int64_t i = 0; i < num_places; ++i) {
    places[i] = next[static_cast<size_t>(ids[i])]++;
    sources[places[i]] = static_cast<int32_t>(i);
  }
}

RouteArgs args_of(const Tensor& logits_TX, const RouteRule& rule) {
  return {.experts = logits_TX.size(1), .chosen = rule.chosen, .normalises = rule.normalises};
}

}  // namespace

Routing CpuExperts::route(const Tensor& logits_TX, const RouteRule& rule) {
  const int64_t rows = logits_TX.size(0);
  const RouteArgs args = args_of(logits_TX, rule);
  TANDEM_CHECK(rule.chosen > 0 && rule.chosen <= args.experts, rule.chosen, "of", args.experts, "experts");
  Routing routing;
  routing.ids_TC = at::empty({rows, rule.chosen}, logits_TX.options().dtype(at::kInt));
  routing.weights_TC = at::empty({rows, rule.chosen}, logits_TX.options());
  auto* const ids = routing.ids_TC.data_ptr<int32_t>();
  auto* const weights = routing.weights_TC.data_ptr<float>();
  threads_.for_pieces(rows, kRowChunk, [&](int64_t begin, int64_t count) {
    table_.route(floats(logits_TX) + begin * args.experts, ids + begin * args.chosen, weights + begin * args.chosen,
                 count, args);
  });
  order_places(routing, args.experts);
  return routing;
}

Tensor CpuExperts::route_backward(const Tensor& dweights_TC, const Tensor& logits_TX, const Routing& routing,
                                  const RouteRule& rule, at::ScalarType out) {
  const RouteArgs args = args_of(logits_TX, rule);
  Tensor dlogits_TX = at::empty(logits_TX.sizes(), logits_TX.options().dtype(out));
  const Elem elem = elem_of(dlogits_TX);
  threads_.for_pieces(logits_TX.size(0), kRowChunk, [&](int64_t begin, int64_t count) {
    const int64_t at = begin * args.chosen;
    table_.route_backward(floats(dweights_TC) + at, floats(logits_TX) + begin * args.experts,
                          words(routing.ids_TC) + at, floats(routing.weights_TC) + at,
                          offset(dlogits_TX.data_ptr(), begin * args.experts, elem), count, args, elem);
  });
  return dlogits_TX;
}

CpuExperts::PlaceRows CpuExperts::rows_of_places(const Tensor& x, RowsAre rows, const Routing& routing) {
  if (rows == RowsAre::kTokens) {
    const auto chosen = static_cast<int32_t>(routing.num_chosen());
    const int32_t* const sources = words(routing.sources_P);
    tokens_P_.resize(static_cast<size_t>(routing.num_places()));
    for (size_t p = 0; p < tokens_P_.size(); ++p) tokens_P_[p] = sources[p] / chosen;
  }
  return {in(x), elem_of(x), x.size(1), rows == RowsAre::kTokens ? tokens_P_.data() : nullptr};
}

Matrix CpuExperts::PlaceRows::from(int64_t place, bool k_major) const {
  if (tokens_P != nullptr) return {data, elem, width, k_major, tokens_P + place};
  return {offset(data, place * width, elem), elem, width, k_major};
}

Tensor CpuExperts::linear(const Tensor& x, RowsAre x_rows, const Tensor& w_XNK, const Routing& routing,
                          at::ScalarType out) {
  return multiply(x, x_rows, weights_of(w_XNK, routing), /*by_columns=*/false, routing, out);
}

Tensor CpuExperts::linear_grad_input(const Tensor& dy, RowsAre dy_rows, const Tensor& w_XNK, const Routing& routing,
                                     at::ScalarType out) {
  return multiply(dy, dy_rows, weights_of(w_XNK, routing), /*by_columns=*/true, routing, out);
}

Tensor CpuExperts::linear_quantised(const Tensor& x, RowsAre x_rows, const QuantisedMatrix& w_XNK,
                                    const Routing& routing, at::ScalarType out) {
  return multiply(x, x_rows, weights_of(w_XNK, routing), /*by_columns=*/false, routing, out);
}

Tensor CpuExperts::linear_quantised_grad_input(const Tensor& dy, RowsAre dy_rows, const QuantisedMatrix& w_XNK,
                                               const Routing& routing, at::ScalarType out) {
  return multiply(dy, dy_rows, weights_of(w_XNK, routing), /*by_columns=*/true, routing, out);
}

CpuExperts::ExpertWeights CpuExperts::weights_of(const Tensor& w_XNK, const Routing& routing) {
  return {.n = w_XNK.size(0) / routing.num_experts(),
          .k = w_XNK.size(1),
          .elements = in(w_XNK),
          .elem = elem_of(w_XNK),
          .quantised = {}};
}

CpuExperts::ExpertWeights CpuExperts::weights_of(const QuantisedMatrix& w_XNK, const Routing& routing) {
  const auto* const bytes = static_cast<const std::byte*>(in(w_XNK.bytes));
  ExpertWeights w = {.n = w_XNK.num_rows() / routing.num_experts(),
                     .k = w_XNK.num_columns(),
                     .elements = nullptr,
                     .elem = Elem::kBF16,
                     .quantised = {}};
  const QuantisedPart* part = w_XNK.parts.data();
  const QuantisedPart* const end = part + w_XNK.parts.size();
  for (int64_t e = 0; e < routing.num_experts(); ++e) {
    const QuantisedPart* const first = part;
    while (part != end && part->row_begin < (e + 1) * w.n) ++part;
    TANDEM_CHECK(first != part && first->row_begin == e * w.n, "no part begins with the rows of expert", e);
    w.quantised.push_back({.data = bytes, .parts = first, .num_parts = part - first, .first_row = e * w.n});
  }
  return w;
}

Matrix CpuExperts::ExpertWeights::matrix_of(int64_t e, bool by_columns) const {
  return {elements == nullptr ? nullptr : offset(elements, e * n * k, elem), elem, k, by_columns};
}

const QuantisedRows* CpuExperts::ExpertWeights::quantised_of(int64_t e) const {
  return quantised.empty() ? nullptr : &quantised[static_cast<size_t>(e)];
}

Tensor CpuExperts::multiply(const Tensor& x, RowsAre x_rows, const ExpertWeights& w, bool by_columns,
                            const Routing& routing, at::ScalarType out) {
  const int64_t outputs = by_columns ? w.k : w.n, depth = by_columns ? w.n : w.k;
  TANDEM_CHECK(w.quantised.empty() || x.scalar_type() == at::kBFloat16, "rows of another kind than the experts");
  TANDEM_CHECK_EQ(x.size(1), depth);
  const PlaceRows rows = rows_of_places(x, x_rows, routing);
  Tensor y = at::empty({routing.num_places(), outputs}, x.options().dtype(out));
  const Elem y_elem = elem_of(y);
  const int32_t* const offsets = words(routing.offsets_X1);
  std::vector<GemmProblem> products;
  for (int64_t e = 0; e < routing.num_experts(); ++e) {
    products.push_back({offsets[e + 1] - offsets[e], outputs, depth, rows.from(offsets[e], /*k_major=*/false),
                        w.matrix_of(e, by_columns), offset(y.data_ptr(), offsets[e] * outputs, y_elem), y_elem, outputs,
                        false, w.quantised_of(e)});
  }
  gemm_.run_groups(products);
  return y;
}

void CpuExperts::linear_grad_weight(const Tensor& dy, RowsAre dy_rows, const Tensor& x, RowsAre x_rows,
                                    const Tensor& dw_XNK, const Routing& routing, GradientUse use) {
  const int64_t n = dy.size(1), k = x.size(1);
  TANDEM_CHECK_EQ(dw_XNK.scalar_type(), at::kFloat);
  in(dw_XNK);
  const PlaceRows dy_PN = rows_of_places(dy, dy_rows, routing), x_PK = rows_of_places(x, x_rows, routing);
  const int32_t* const offsets = words(routing.offsets_X1);
  std::vector<GemmProblem> products;
  for (int64_t e = 0; e < routing.num_experts(); ++e) {
    float* const dw = dw_XNK.data_ptr<float>() + e * n * k;
    const int64_t count = offsets[e + 1] - offsets[e];
    if (count == 0 && use == GradientUse::kSet) std::fill_n(dw, n * k, 0.0F);
    if (count == 0) continue;
    products.push_back({n, k, count, dy_PN.from(offsets[e], /*k_major=*/true), x_PK.from(offsets[e], /*k_major=*/true),
                        dw, Elem::kF32, k, use == GradientUse::kAdd});
  }
  gemm_.run_groups(products);
}

Tensor CpuExperts::sum(const Tensor& y_PE, const Tensor& weights_TC, const Routing& routing, const Tensor& residual_TE,
                       at::ScalarType out) {
  const int64_t rows = routing.num_tokens();
  Tensor sum_TE = at::empty({rows, y_PE.size(1)}, y_PE.options().dtype(out));
  const ExpertSumArgs args{y_PE.size(1), routing.num_chosen(), elem_of(y_PE), elem_of(sum_TE)};
  TANDEM_CHECK(!residual_TE.defined() || residual_TE.scalar_type() == out, "a residual of another dtype");
  threads_.for_pieces(rows, kRowChunk, [&](int64_t begin, int64_t count) {
    const int64_t at = begin * args.chosen;
    table_.sum_of_experts(in(y_PE), weights_TC.defined() ? floats(weights_TC) + at : nullptr,
                          words(routing.places_TC) + at,
                          residual_TE.defined() ? offset(in(residual_TE), begin * args.width, args.sum_elem) : nullptr,
                          offset(sum_TE.data_ptr(), begin * args.width, args.sum_elem), count, args);
  });
  return sum_TE;
}

Ops::WeightedSilu CpuExperts::weighted_silu_backward(const Tensor& da_PF, const Tensor& gate_up_P2F,
                                                     const Routing& routing) {
  const int64_t places = da_PF.size(0), width = da_PF.size(1);
  Ops::WeightedSilu result{at::empty_like(gate_up_P2F), at::empty_like(da_PF), at::empty_like(routing.weights_TC)};
  const Elem elem = elem_of(da_PF);
  const int32_t* const sources = words(routing.sources_P);
  const float* const weights = floats(routing.weights_TC);
  auto* const dweights = result.dweights_TC.data_ptr<float>();
  threads_.for_pieces(places, kRowChunk, [&](int64_t begin, int64_t count) {
    float own_weights[kRowChunk], own_dweights[kRowChunk];
    for (int64_t i = 0; i < count; ++i) own_weights[i] = weights[sources[begin + i]];
    table_.weighted_silu_backward(
        offset(in(da_PF), begin * width, elem), offset(in(gate_up_P2F), begin * 2 * width, elem), own_weights,
        offset(result.dgate_up_P2F.data_ptr(), begin * 2 * width, elem),
        offset(result.weighted_PF.data_ptr(), begin * width, elem), own_dweights, count, width, elem);
    for (int64_t i = 0; i < count; ++i) dweights[sources[begin + i]] = own_dweights[i];
  });
  return result;
}

}  // namespace tandem::device::cpu
