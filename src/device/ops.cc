#include "device/ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "base/check.h"
#include "device/transfer.h"

namespace tandem::device {

namespace {

class CopiedFetch final : public Ops::Fetch {
 public:
  explicit CopiedFetch(const Tensor& x) : host_(x.is_cpu() ? x.clone() : to_host(x)) {}
  const Tensor& wait() override { return host_; }

 private:
  Tensor host_;
};

class CalledRecording final : public Ops::Recording {
 public:
  explicit CalledRecording(std::function<void()> work) : work_(std::move(work)) {}
  void replay() override { work_(); }

 private:
  std::function<void()> work_;
};

}  // namespace

void Ops::linear_add_to(const Tensor& x_TK, const Tensor& w_NK, const Tensor& y_TN) const {
  y_TN.add_(linear(x_TK, w_NK, y_TN.scalar_type()));
}

Tensor Ops::dequantise(const QuantisedMatrix& /*w_NK*/) const {
  TANDEM_CHECK(false, name(), "has no quantised matrices");
}

Tensor Ops::linear_quantised(const Tensor& x_TK, const QuantisedMatrix& w_NK, at::ScalarType out) const {
  return linear(x_TK, dequantise(w_NK), out);
}

Tensor Ops::linear_quantised_add(const Tensor& x_TK, const QuantisedMatrix& w_NK, const Tensor& residual_TN) const {
  return add(residual_TN, linear_quantised(x_TK, w_NK, residual_TN.scalar_type()));
}

Tensor Ops::linear_quantised_grad_input(const Tensor& dy_TN, const QuantisedMatrix& w_NK, at::ScalarType out) const {
  return linear_grad_input(dy_TN, dequantise(w_NK), out);
}

Tensor Ops::linear_of_experts_quantised(const Tensor& x, RowsAre x_rows, const QuantisedMatrix& w_XNK,
                                        const Routing& routing, at::ScalarType out) const {
  return linear_of_experts(x, x_rows, dequantise(w_XNK), routing, out);
}

Tensor Ops::linear_of_experts_quantised_grad_input(const Tensor& dy, RowsAre dy_rows, const QuantisedMatrix& w_XNK,
                                                   const Routing& routing, at::ScalarType out) const {
  return linear_of_experts_grad_input(dy, dy_rows, dequantise(w_XNK), routing, out);
}

Ops::ExpertsMlp Ops::mlp_of_experts(const Tensor& x_TE, const Tensor& gate_up_X2FE, const Tensor& down_XEF,
                                    const Routing& routing, const Tensor& residual_TE, at::ScalarType out,
                                    bool keeps_gate_up) const {
  const Tensor gate_up_P2F = linear_of_experts(x_TE, RowsAre::kTokens, gate_up_X2FE, routing, x_TE.scalar_type());
  const Tensor y_PE = linear_of_experts(silu_mul(gate_up_P2F), RowsAre::kPlaces, down_XEF, routing, out);
  return {.sum_TE = sum_of_experts(y_PE, routing.weights_TC, routing, residual_TE, out),
          .gate_up_P2F = keeps_gate_up ? gate_up_P2F : Tensor()};
}

// The share is a routing of its own, which has the places of these experts alone.
void Ops::results_of_experts(const Tensor& x_TE, const Tensor& gate_up_X2FE, const Tensor& down_XEF,
                             const Routing& routing, ExpertRange range, const Tensor& y_PE) const {
  const Tensor offsets = fetch(routing.offsets_X1)->wait();
  const auto* const offset = offsets.const_data_ptr<int32_t>();
  const int64_t begin = offset[range.first], count = offset[range.first + range.count] - begin;
  if (count == 0) return;
  const Routing share = {.ids_TC = routing.ids_TC,
                         .weights_TC = routing.weights_TC,
                         .offsets_X1 = routing.offsets_X1.narrow(0, range.first, range.count + 1) - begin,
                         .places_TC = routing.places_TC,
                         .sources_P = routing.sources_P.narrow(0, begin, count)};
  const auto weights_of_share = [&](const Tensor& w_XNK) {
    const int64_t rows = w_XNK.size(0) / routing.num_experts();
    return w_XNK.narrow(0, range.first * rows, range.count * rows);
  };
  const at::ScalarType dtype = x_TE.scalar_type();
  const Tensor gate_up_P2F = linear_of_experts(x_TE, RowsAre::kTokens, weights_of_share(gate_up_X2FE), share, dtype);
  y_PE.narrow(0, begin, count)
      .copy_(linear_of_experts(silu_mul(gate_up_P2F), RowsAre::kPlaces, weights_of_share(down_XEF), share, dtype));
}

Tensor Ops::dropout(const Tensor& x_TK, const Tensor& row_keys_T, const Dropout& dropout) const {
  TANDEM_CHECK(is_on_host(), name(), "has no dropout");
  const int64_t rows = x_TK.size(0), width = x_TK.size(1);
  TANDEM_CHECK_EQ(row_keys_T.numel(), rows);
  const auto* const keys = row_keys_T.const_data_ptr<int64_t>();
  Tensor y_TK = at::empty_like(x_TK);
  const auto drop = [&](const auto* x, auto* y) {
    for (int64_t t = 0; t < rows; ++t)
      drop_row(dropout, static_cast<uint64_t>(keys[t]), x + t * width, y + t * width, width);
  };
  if (x_TK.scalar_type() == at::kFloat) {
    drop(x_TK.const_data_ptr<float>(), y_TK.mutable_data_ptr<float>());
  } else {
    drop(x_TK.const_data_ptr<at::BFloat16>(), y_TK.mutable_data_ptr<at::BFloat16>());
  }
  return y_TK;
}

std::unique_ptr<Ops::Fetch> Ops::fetch(const Tensor& x) const { return std::make_unique<CopiedFetch>(x); }

std::unique_ptr<Ops::Recording> Ops::record(std::function<void()> work) const {
  return std::make_unique<CalledRecording>(std::move(work));
}

}  // namespace tandem::device
