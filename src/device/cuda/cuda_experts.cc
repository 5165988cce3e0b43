#include "device/cuda/cuda_experts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <memory>

#include "base/check.h"
#include "device/cuda/experts.h"
#include "device/cuda/experts_grad_weight.h"
#include "device/cuda/places.h"
#include "device/cuda/route.h"
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

bool is_capturing() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream(), &status));
  return status == cudaStreamCaptureStatusActive;
}

bool is_bfloat16(const Tensor& x) { return x.scalar_type() == at::kBFloat16; }
bool is_aligned(const Tensor& x) {
  return !x.defined() || (x.is_contiguous() && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0);
}
bool is_bfloat16_rows(const Tensor& x) { return is_bfloat16(x) && is_aligned(x) && cuda::supports_width(x.size(1)); }

const bf16* data(const Tensor& x) { return static_cast<const bf16*>(x.const_data_ptr()); }
bf16* mutable_data(const Tensor& x) { return static_cast<bf16*>(x.mutable_data_ptr()); }
const int32_t* ints(const Tensor& x) { return x.const_data_ptr<int32_t>(); }
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

// Returns the product by the kernel of experts.h, which `product` says the sizes of.
Tensor multiply(const Tensor& x, RowsAre x_rows, const Tensor& w, cuda::ExpertsProduct product, const Routing& routing,
                at::ScalarType out) {
  const Tensor y_PN = at::empty({routing.num_places(), product.N}, x.options().dtype(out));
  product.rows = data(x);
  product.weights = data(w);
  product.offsets = ints(routing.offsets_X1);
  product.sources = x_rows == RowsAre::kTokens ? ints(routing.sources_P) : nullptr;
  product.num_experts = routing.num_experts();
  product.num_places = routing.num_places();
  product.num_chosen = routing.num_chosen();
  check(cuda::linear_of_experts(product, cuda::experts_tiling(product.num_places, product.num_experts),
                                y_PN.mutable_data_ptr(), out == at::kFloat, stream()));
  return y_PN;
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

bool CudaExperts::can_record(int64_t num_experts, int64_t chosen, int64_t hidden, int64_t width) {
  return cuda::supports_routing(num_experts, chosen) && cuda::supports_width(hidden) && cuda::supports_width(width);
}

Routing CudaExperts::route(const Tensor& logits_TX, const RouteRule& rule) const {
  const int64_t T = logits_TX.size(0), X = logits_TX.size(1), C = rule.chosen;
  if (!cuda::supports_routing(X, C)) return experts_aten::route(logits_TX, rule);
  const auto options = logits_TX.options().dtype(at::kInt);
  Routing routing = {.ids_TC = at::empty({T, C}, options),
                     .weights_TC = at::empty({T, C}, logits_TX.options()),
                     .offsets_X1 = at::empty({X + 1}, options),
                     .places_TC = at::empty({T, C}, options),
                     .sources_P = at::empty({T * C}, options)};
  auto* const ids = routing.ids_TC.mutable_data_ptr<int32_t>();
  check(cuda::route(floats(logits_TX), T, X, C, rule.normalises, ids, routing.weights_TC.mutable_data_ptr<float>(),
                    stream()));
  const Tensor scratch = at::empty({cuda::order_places_scratch(T, X)}, options);
  check(cuda::order_places(ids, T, X, C, routing.offsets_X1.mutable_data_ptr<int32_t>(),
                           routing.places_TC.mutable_data_ptr<int32_t>(), routing.sources_P.mutable_data_ptr<int32_t>(),
                           scratch.mutable_data_ptr<int32_t>(), stream()));
  // So many tokens are trained on, mostly: where the gradient of a weight needs the experts' numbers of places on the
  // host, it will find them there.
  if (!has_grad_weight_kernel_ && T > cuda::kOrderTileTokens && !is_capturing()) {
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
  if (has_many_places(routing) && out == at::kBFloat16 && cuda::supports_width(N) && !is_capturing() &&
      grouped_.is_exact(ProductKind::kForward, N, K, x.device())) {
    return cuda::GroupedProducts::forward(rows_of_places(x, x_rows, routing), w_XNK, routing.offsets_X1);
  }
  return multiply(x, x_rows, w_XNK, {.N = N, .K = K}, routing, out);
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
  return multiply(dy, dy_rows, w_XNK, {.N = K, .K = N, .transposed = true}, routing, out);
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
  const int64_t E = y_PE.size(1);
  if (!cuda::supports_width(E) || !is_aligned(y_PE) || !is_aligned(residual_TE)) {
    return experts_aten::sum(y_PE, weights_TC, routing, residual_TE, out);
  }
  const Tensor sum_TE = at::empty({routing.num_tokens(), E}, y_PE.options().dtype(out));
  const cuda::PlacedRows placed = {.rows = y_PE.const_data_ptr(),
                                   .are_float32 = !is_bfloat16(y_PE),
                                   .weights = floats(weights_TC),
                                   .places = ints(routing.places_TC),
                                   .num_chosen = routing.num_chosen()};
  check(cuda::sum_of_experts(placed, residual_TE.defined() ? residual_TE.const_data_ptr() : nullptr,
                             sum_TE.mutable_data_ptr(), out == at::kFloat, routing.num_tokens(), E, stream()));
  return sum_TE;
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
