#include "device/cuda/experts/cuda_experts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <memory>

#include "base/check.h"
#include "device/cuda/experts/experts.h"
#include "device/cuda/experts/experts_codes.h"
#include "device/cuda/experts/experts_grad_weight.h"
#include "device/cuda/experts/places.h"
#include "device/cuda/experts/route.h"
#include "device/cuda/gpu_limits.h"
#include "device/cuda/graph.h"
#include "device/cuda/products/cuda_quantised.h"
#include "device/cuda/rowwise.h"
#include "device/cuda/scratch.h"
#include "device/experts_aten.h"

namespace tandem::device {
namespace {

using cuda::bf16;
using cuda::ProductKind;

// So many places an expert, on average, and the library's kernel for many rows is the faster one.
constexpr int64_t kManyPlaces = 64;

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

void check(cudaError_t error) {
  TANDEM_ENV_CHECK(error == cudaSuccess, "the GPU's experts failed:", cudaGetErrorString(error));
}

bool is_bfloat16(const Tensor& x) { return x.scalar_type() == at::kBFloat16; }
bool is_aligned(const Tensor& x) {
  return !x.defined() || (x.is_contiguous() && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0);
}
bool is_bfloat16_rows(const Tensor& x) { return is_bfloat16(x) && is_aligned(x) && cuda::supports_width(x.size(1)); }

const bf16* data(const Tensor& x) { return static_cast<const bf16*>(x.const_data_ptr()); }
bf16* mutable_data(const Tensor& x) { return static_cast<bf16*>(x.mutable_data_ptr()); }
const int32_t* ints(const Tensor& x) { return x.const_data_ptr<int32_t>(); }
int32_t* mutable_ints(const Tensor& x) { return x.mutable_data_ptr<int32_t>(); }
const float* floats(const Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }

// Returns a row for each place of bfloat16 rows.
Tensor rows_of_places(const Tensor& x, RowsAre rows, const Routing& routing) {
  if (rows == RowsAre::kPlaces) return x;
  const Tensor x_PE = at::empty({routing.num_places(), x.size(1)}, x.options());
  check(cuda::gather_tokens(data(x), ints(routing.sources_P), routing.num_places(), routing.num_chosen(), x.size(1),
                            mutable_data(x_PE), stream()));
  return x_PE;
}

// Returns whether the products of these rows have kernels.
bool has_kernels(const Tensor& x, const Tensor& w, const Routing& routing) {
  return is_bfloat16_rows(x) && is_bfloat16_rows(w) && routing.num_experts() <= cuda::kMostExperts;
}
bool has_many_places(const Routing& routing) { return routing.num_places() > kManyPlaces * routing.num_experts(); }

// The results of a product by a kernel of ours.
struct Wanted {
  Tensor out;             // [P, N], which may be undefined where the other is not
  Tensor activated = {};  // [P, N / 2]: silu_mul() of it, if defined
  bool offsets_are_old = false;
  // The places of a share of the experts are about so many; 0: all.
  int64_t likely_places = 0;

  int64_t width() const { return out.defined() ? out.size(1) : 2 * activated.size(1); }
  bool are_float32() const { return out.defined() && !is_bfloat16(out); }
  void* data() const { return out.defined() ? out.mutable_data_ptr() : nullptr; }
};

// Computes the product, or the gradient of its input where `transposed`, by the kernels of experts.h.
void multiply(const Tensor& x, RowsAre x_rows, const Tensor& w, const Routing& routing, bool transposed,
              const Wanted& wanted) {
  const cuda::ExpertsProduct product = {
      .rows = data(x),
      .weights = data(w),
      .ids = ints(routing.ids_TC),
      .offsets = ints(routing.offsets_X1),
      .sources = x_rows == RowsAre::kTokens ? ints(routing.sources_P) : nullptr,
      .num_experts = routing.num_experts(),
      .num_places = routing.num_places(),
      .num_chosen = routing.num_chosen(),
      .N = wanted.width(),
      .K = x.size(1),
      .transposed = transposed,
      .offsets_are_old = wanted.offsets_are_old,
      .activated = wanted.activated.defined() ? mutable_data(wanted.activated) : nullptr};
  const cuda::ExpertsTiling tiling =
      cuda::experts_tiling({.num_experts = product.num_experts,
                            .num_places = wanted.likely_places > 0 ? wanted.likely_places : product.num_places,
                            .num_chosen = product.num_chosen,
                            .K = product.K,
                            .transposed = transposed},
                           cuda::gpu_limits());
  check(cuda::linear_of_experts(product, tiling, wanted.data(), wanted.are_float32(), stream()));
}

// Returns bfloat16 weights, of which only the rows of experts with places are written.
Tensor dequantised(const QuantisedMatrix& w_XNK, const cuda::QuantisedExperts& experts, const Routing& routing) {
  const Tensor weights_XNK = cuda::room_for(w_XNK);
  check(cuda::dequantise(experts, ints(routing.offsets_X1), mutable_data(weights_XNK), stream()));
  return weights_XNK;
}

// Returns the sum of each token's places, by the kernel of places.h.
Tensor add_up(const Tensor& y_PE, const Tensor& weights_TC, const Routing& routing, const Tensor& residual_TE,
              at::ScalarType out, bool rest_is_old) {
  const int64_t T = routing.num_tokens(), E = y_PE.size(1);
  const Tensor sum_TE = at::empty({T, E}, y_PE.options().dtype(out));
  const cuda::PlacedRows placed = {.rows = y_PE.const_data_ptr(),
                                   .are_float32 = !is_bfloat16(y_PE),
                                   .weights = floats(weights_TC),
                                   .places = ints(routing.places_TC),
                                   .num_chosen = routing.num_chosen(),
                                   .rest_is_old = rest_is_old};
  check(cuda::sum_of_experts(placed, residual_TE.defined() ? residual_TE.const_data_ptr() : nullptr,
                             sum_TE.mutable_data_ptr(), out == at::kFloat, T, E, stream()));
  return sum_TE;
}

// Returns the offsets on the host: those that route() began to fetch, or else when the device has come here.
std::unique_ptr<Ops::Fetch> fetched_now(const Ops& ops, const Routing& routing) {
  return routing.prepared == nullptr ? ops.fetch(routing.offsets_X1) : nullptr;
}
const Tensor& offsets_on_host(const Routing& routing, const std::unique_ptr<Ops::Fetch>& now) {
  if (now != nullptr) return now->wait();
  return std::static_pointer_cast<Ops::Fetch>(std::const_pointer_cast<void>(routing.prepared))->wait();
}

}  // namespace

Routing CudaExperts::route(const Tensor& logits_TX, const RouteRule& rule) const {
  const int64_t T = logits_TX.size(0), X = logits_TX.size(1), C = rule.chosen;
  if (!cuda::supports_routing(X, C)) return experts_aten::route(logits_TX, rule);
  const auto options = logits_TX.options().dtype(at::kInt);
  Routing routing = {.ids_TC = at::empty({T, C}, options),
                     .weights_TC = at::empty({T, C}, logits_TX.options()),
                     .offsets_X1 = at::empty({X + 1}, options),
                     .places_TC = at::empty({T, C}, options),
                     .sources_P = at::empty({T * C}, options)};
  const Tensor scratch = at::empty({cuda::order_places_scratch(T, X)}, options);
  const cuda::RoutingMemory memory = {.ids = mutable_ints(routing.ids_TC),
                                      .weights = routing.weights_TC.mutable_data_ptr<float>(),
                                      .offsets = mutable_ints(routing.offsets_X1),
                                      .places = mutable_ints(routing.places_TC),
                                      .sources = mutable_ints(routing.sources_P),
                                      .scratch = mutable_ints(scratch)};
  check(cuda::route(floats(logits_TX), T, X, C, rule.normalises, memory, stream()));
  // So many tokens are trained on, mostly: where the gradient of a weight needs the experts' numbers of places on the
  // host, it will find them there.
  if (!has_grad_weight_kernel_ && T > cuda::kOrderTileTokens && !cuda::is_capturing(stream())) {
    routing.prepared = std::shared_ptr<const void>(ops_.fetch(routing.offsets_X1));
  }
  return routing;
}

Tensor CudaExperts::route_backward(const Tensor& dweights_TC, const Tensor& logits_TX, const Routing& routing,
                                   const RouteRule& rule, at::ScalarType out) const {
  const int64_t T = logits_TX.size(0), X = logits_TX.size(1), C = rule.chosen;
  if (!cuda::supports_routing(X, C)) {
    return experts_aten::route_backward(dweights_TC, logits_TX, routing, rule, out);
  }
  const Tensor dlogits_TX = at::empty({T, X}, logits_TX.options().dtype(out));
  const auto run = [&](auto* dlogits) {
    check(cuda::route_backward(floats(dweights_TC), floats(logits_TX), ints(routing.ids_TC), floats(routing.weights_TC),
                               T, X, C, rule.normalises, dlogits, stream()));
  };
  if (out == at::kBFloat16) {
    run(mutable_data(dlogits_TX));
  } else {
    run(dlogits_TX.mutable_data_ptr<float>());
  }
  return dlogits_TX;
}

Tensor CudaExperts::linear(const Tensor& x, RowsAre x_rows, const Tensor& w_XNK, const Routing& routing,
                           at::ScalarType out) {
  if (!has_kernels(x, w_XNK, routing)) {
    return experts_aten::linear(ops_, x, x_rows, w_XNK, routing, out);
  }
  const int64_t N = w_XNK.size(0) / routing.num_experts(), K = w_XNK.size(1);
  // The library's kernel is asked once whether it is exact, which waits for the device: not while a step is recorded.
  if (has_many_places(routing) && out == at::kBFloat16 && cuda::supports_width(N) && !cuda::is_capturing(stream()) &&
      grouped_.is_exact(ProductKind::kForward, N, K, x.device())) {
    return cuda::GroupedProducts::forward(rows_of_places(x, x_rows, routing), w_XNK, routing.offsets_X1);
  }
  const Tensor y_PN = at::empty({routing.num_places(), N}, x.options().dtype(out));
  multiply(x, x_rows, w_XNK, routing, /*transposed=*/false, {.out = y_PN});
  return y_PN;
}

Tensor CudaExperts::linear_grad_input(const Tensor& dy, RowsAre dy_rows, const Tensor& w_XNK, const Routing& routing,
                                      at::ScalarType out) {
  if (!has_kernels(dy, w_XNK, routing)) {
    return experts_aten::linear_grad_input(ops_, dy, dy_rows, w_XNK, routing, out);
  }
  const int64_t N = w_XNK.size(0) / routing.num_experts(), K = w_XNK.size(1);
  if (has_many_places(routing) && out == at::kBFloat16 &&
      grouped_.is_exact(ProductKind::kGradInput, N, K, dy.device())) {
    return cuda::GroupedProducts::grad_input(rows_of_places(dy, dy_rows, routing), w_XNK, routing.offsets_X1);
  }
  const Tensor dx_PK = at::empty({routing.num_places(), K}, dy.options().dtype(out));
  multiply(dy, dy_rows, w_XNK, routing, /*transposed=*/true, {.out = dx_PK});
  return dx_PK;
}

Tensor CudaExperts::linear_quantised(const Tensor& x, RowsAre x_rows, const QuantisedMatrix& w_XNK,
                                     const Routing& routing, at::ScalarType out) {
  const cuda::QuantisedExperts experts = cuda::experts_of(w_XNK, routing.num_experts());
  const int64_t N = w_XNK.num_rows() / routing.num_experts(), K = w_XNK.num_columns();
  if (!is_bfloat16_rows(x) || has_many_places(routing) || !cuda::supports_experts_of_codes(experts, N, K)) {
    return linear(x, x_rows, dequantised(w_XNK, experts, routing), routing, out);
  }
  const Tensor y_PN = at::empty({routing.num_places(), N}, x.options().dtype(out));
  const cuda::ExpertsOfCodes product = {.rows = data(x),
                                        .weights = experts,
                                        .offsets = ints(routing.offsets_X1),
                                        .sources = x_rows == RowsAre::kTokens ? ints(routing.sources_P) : nullptr,
                                        .num_places = routing.num_places(),
                                        .num_chosen = routing.num_chosen(),
                                        .N = N,
                                        .K = K};
  check(cuda::linear_of_experts(product, y_PN.mutable_data_ptr(), out == at::kFloat, stream()));
  return y_PN;
}

Tensor CudaExperts::linear_quantised_grad_input(const Tensor& dy, RowsAre dy_rows, const QuantisedMatrix& w_XNK,
                                                const Routing& routing, at::ScalarType out) {
  const cuda::QuantisedExperts experts = cuda::experts_of(w_XNK, routing.num_experts());
  return linear_grad_input(dy, dy_rows, dequantised(w_XNK, experts, routing), routing, out);
}

void CudaExperts::linear_grad_weight(const Tensor& dy, RowsAre dy_rows, const Tensor& x, RowsAre x_rows,
                                     const Tensor& dw_XNK, const Routing& routing, GradientUse use) const {
  if (!is_bfloat16_rows(dy) || !is_bfloat16_rows(x)) {
    return experts_aten::linear_grad_weight(ops_, dy, dy_rows, x, x_rows, dw_XNK, routing, use);
  }
  if (has_grad_weight_kernel_ && routing.num_experts() <= cuda::kMostExperts && is_aligned(dw_XNK)) {
    const Tensor scratch = at::empty({1}, routing.offsets_X1.options());
    const cuda::ExpertsGradWeight gradient = {.dy = data(dy),
                                              .x = data(x),
                                              .dy_is_of_tokens = dy_rows == RowsAre::kTokens,
                                              .x_is_of_tokens = x_rows == RowsAre::kTokens,
                                              .offsets = ints(routing.offsets_X1),
                                              .sources = ints(routing.sources_P),
                                              .num_experts = routing.num_experts(),
                                              .num_chosen = routing.num_chosen(),
                                              .N = dy.size(1),
                                              .K = x.size(1)};
    return check(cuda::experts_grad_weight(gradient, dw_XNK.mutable_data_ptr<float>(), use == GradientUse::kAdd,
                                           scratch.mutable_data_ptr<int32_t>(), stream()));
  }
  const Tensor dy_PN = rows_of_places(dy, dy_rows, routing), x_PK = rows_of_places(x, x_rows, routing);
  const std::unique_ptr<Ops::Fetch> now = fetched_now(ops_, routing);
  const int32_t* const offsets = ints(offsets_on_host(routing, now));
  const int64_t N = dy.size(1);
  for (int64_t e = 0; e < routing.num_experts(); ++e) {
    const int64_t first = offsets[e], count = offsets[e + 1] - offsets[e];
    const Tensor dw_NK = dw_XNK.narrow(0, e * N, N);
    if (count > 0) {
      ops_.linear_grad_weight(dy_PN.narrow(0, first, count), x_PK.narrow(0, first, count), dw_NK, use);
    } else if (use == GradientUse::kSet) {
      dw_NK.zero_();
    }
  }
}

Tensor CudaExperts::sum(const Tensor& y_PE, const Tensor& weights_TC, const Routing& routing, const Tensor& residual_TE,
                        at::ScalarType out) const {
  if (!cuda::supports_width(y_PE.size(1)) || !is_aligned(y_PE) || !is_aligned(residual_TE)) {
    return experts_aten::sum(y_PE, weights_TC, routing, residual_TE, out);
  }
  return add_up(y_PE, weights_TC, routing, residual_TE, out, /*rest_is_old=*/false);
}

// Three kernels, each of which begins to read while the one before it still computes: what is not that one's result is
// older than the first of them.
Ops::ExpertsMlp CudaExperts::mlp(const Tensor& x_TE, const Tensor& gate_up_X2FE, const Tensor& down_XEF,
                                 const Routing& routing, const Tensor& residual_TE, at::ScalarType out,
                                 bool keeps_gate_up) const {
  if (has_many_places(routing) || !has_kernels(x_TE, gate_up_X2FE, routing) || !is_bfloat16_rows(down_XEF) ||
      !is_aligned(residual_TE)) {
    return ops_.Ops::mlp_of_experts(x_TE, gate_up_X2FE, down_XEF, routing, residual_TE, out, keeps_gate_up);
  }
  const int64_t P = routing.num_places(), E = x_TE.size(1), F = down_XEF.size(1);
  const Tensor gate_up_P2F = keeps_gate_up ? at::empty({P, 2 * F}, x_TE.options()) : Tensor();
  const Tensor a_PF = at::empty({P, F}, x_TE.options());
  multiply(x_TE, RowsAre::kTokens, gate_up_X2FE, routing, /*transposed=*/false,
           {.out = gate_up_P2F, .activated = a_PF});
  const Tensor y_PE = at::empty({P, E}, x_TE.options().dtype(out));
  multiply(a_PF, RowsAre::kPlaces, down_XEF, routing, /*transposed=*/false,
           {.out = y_PE, .activated = {}, .offsets_are_old = true});
  return {.sum_TE = add_up(y_PE, routing.weights_TC, routing, residual_TE, out, /*rest_is_old=*/true),
          .gate_up_P2F = gate_up_P2F};
}

// The products take the places of these experts where they lie: their offsets say where, so nothing waits for the host.
void CudaExperts::results(const Tensor& x_TE, const Tensor& gate_up_X2FE, const Tensor& down_XEF,
                          const Routing& routing, ExpertRange range, const Tensor& y_PE) const {
  if (!has_kernels(x_TE, gate_up_X2FE, routing) || !is_bfloat16_rows(down_XEF) || !is_bfloat16_rows(y_PE)) {
    return ops_.Ops::results_of_experts(x_TE, gate_up_X2FE, down_XEF, routing, range, y_PE);
  }
  const int64_t E = x_TE.size(1), F = down_XEF.size(1), P = routing.num_places();
  Routing share = routing;
  share.offsets_X1 = routing.offsets_X1.narrow(0, range.first, range.count + 1);
  // More than one token's, so that the kernel for one is not chosen: it would take all places for those of the share.
  const int64_t likely_places = std::max(P * range.count / routing.num_experts(), routing.num_chosen() + 1);
  const Tensor a_PF = at::empty({P, F}, x_TE.options());
  multiply(x_TE, RowsAre::kTokens, gate_up_X2FE.narrow(0, range.first * 2 * F, range.count * 2 * F), share,
           /*transposed=*/false, {.out = {}, .activated = a_PF, .likely_places = likely_places});
  multiply(a_PF, RowsAre::kPlaces, down_XEF.narrow(0, range.first * E, range.count * E), share, /*transposed=*/false,
           {.out = y_PE, .activated = {}, .offsets_are_old = true, .likely_places = likely_places});
}

Ops::WeightedSilu CudaExperts::weighted_silu_backward(const Tensor& da_PF, const Tensor& gate_up_P2F,
                                                      const Routing& routing) const {
  if (!is_bfloat16_rows(da_PF) || !is_bfloat16_rows(gate_up_P2F)) {
    return experts_aten::weighted_silu_backward(da_PF, gate_up_P2F, routing);
  }
  const Ops::WeightedSilu result = {.dgate_up_P2F = at::empty_like(gate_up_P2F),
                                    .weighted_PF = at::empty_like(da_PF),
                                    .dweights_TC = at::empty_like(routing.weights_TC)};
  check(cuda::weighted_silu_backward(data(da_PF), data(gate_up_P2F), ints(routing.sources_P),
                                     floats(routing.weights_TC), da_PF.size(0), da_PF.size(1),
                                     mutable_data(result.dgate_up_P2F), mutable_data(result.weighted_PF),
                                     result.dweights_TC.mutable_data_ptr<float>(), stream()));
  return result;
}

}  // namespace tandem::device
