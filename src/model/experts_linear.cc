#include "model/experts_linear.h"

#include <ATen/ops/cat.h>

#include <vector>

#include "base/check.h"

namespace tandem::model {

using at::Tensor;
using device::Routing;
using device::RowsAre;

void ExpertsLinear::bind(const weights::WeightsView& view) {
  if (const device::QuantisedMatrix* quantised = view.quantised(name_)) {
    quantised_XNK_ = *quantised;
  } else {
    weight_XNK_ = view[name_];
  }
  if (!has_adapter()) return;
  a_XRK_ = view[a_name_];
  b_XNR_ = view[b_name_];
}

Tensor ExpertsLinear::forward(const Tensor& x, RowsAre x_rows, const Routing& routing, at::ScalarType out) const {
  Tensor y_PN = quantised_XNK_ ? ops_.linear_of_experts_quantised(x, x_rows, *quantised_XNK_, routing, out)
                               : ops_.linear_of_experts(x, x_rows, weight_XNK_, routing, out);
  if (!has_adapter()) return y_PN;
  const Tensor u_PR = narrowed(x, x_rows, routing);
  for (size_t j = 0; j < adapter_.windows.size(); ++j) {
    const auto [begin, count] = adapter_.windows[j];
    const Tensor b_XNR = rows_of(b_XNR_, j, routing);
    y_PN.narrow(1, begin, count)
        .add_(ops_.linear_of_experts(part_of(u_PR, j), RowsAre::kPlaces, b_XNR, routing, y_PN.scalar_type()));
  }
  return y_PN;
}

Tensor ExpertsLinear::input_gradient(const Tensor& dy, RowsAre dy_rows, const Routing& routing,
                                     at::ScalarType out) const {
  Tensor dx_PK = quantised_XNK_
                     ? ops_.linear_of_experts_quantised_grad_input(dy, dy_rows, *quantised_XNK_, routing, out)
                     : ops_.linear_of_experts_grad_input(dy, dy_rows, weight_XNK_, routing, out);
  if (!has_adapter()) return dx_PK;
  const Tensor du_PR = narrowed_gradient(dy, dy_rows, routing);
  return dx_PK.add_(ops_.linear_of_experts_grad_input(du_PR, RowsAre::kPlaces, a_XRK_, routing, out));
}

void ExpertsLinear::add_weight_gradient(const Tensor& dy, RowsAre dy_rows, const Tensor& x, RowsAre x_rows,
                                        const Routing& routing, const GradientSlot& sink) const {
  if (const GradientTarget dw_XNK = sink(name_); dw_XNK.is_wanted()) {
    TANDEM_CHECK(!quantised_XNK_, name_, "is quantised and has no gradient");
    ops_.linear_of_experts_grad_weight(dy, dy_rows, x, x_rows, dw_XNK.memory, routing, dw_XNK.use);
  }
  if (has_adapter()) add_adapter_gradient(dy, dy_rows, x, x_rows, routing, sink);
}

Tensor ExpertsLinear::narrowed(const Tensor& x, RowsAre x_rows, const Routing& routing) const {
  Tensor u_PR = ops_.linear_of_experts(x, x_rows, a_XRK_, routing, x.scalar_type());
  return adapter_.scale == 1.0 ? u_PR : u_PR.mul_(adapter_.scale);
}

Tensor ExpertsLinear::part_of(const Tensor& u_PR, size_t j) const {
  const int64_t rank = b_XNR_.size(1);
  return u_PR.narrow(1, static_cast<int64_t>(j) * rank, rank).contiguous();
}

Tensor ExpertsLinear::rows_of(const Tensor& b_XNR, size_t j, const Routing& routing) const {
  int64_t row = 0;
  for (size_t before = 0; before < j; ++before) row += routing.num_experts() * adapter_.windows[before].count;
  return b_XNR.narrow(0, row, routing.num_experts() * adapter_.windows[j].count);
}

Tensor ExpertsLinear::narrowed_gradient(const Tensor& dy, RowsAre dy_rows, const Routing& routing) const {
  std::vector<Tensor> du;
  for (size_t j = 0; j < adapter_.windows.size(); ++j) {
    const auto [begin, count] = adapter_.windows[j];
    du.push_back(ops_.linear_of_experts_grad_input(dy.narrow(1, begin, count).contiguous(), dy_rows,
                                                   rows_of(b_XNR_, j, routing), routing, b_XNR_.scalar_type()));
  }
  Tensor du_PR = du.size() == 1 ? du.front() : at::cat(du, 1);
  return adapter_.scale == 1.0 ? du_PR : du_PR.mul_(adapter_.scale);
}

void ExpertsLinear::add_adapter_gradient(const Tensor& dy, RowsAre dy_rows, const Tensor& x, RowsAre x_rows,
                                         const Routing& routing, const GradientSlot& sink) const {
  const GradientTarget db_XNR = sink(b_name_);
  const Tensor u_PR = narrowed(x, x_rows, routing);
  for (size_t j = 0; j < adapter_.windows.size(); ++j) {
    const auto [begin, count] = adapter_.windows[j];
    ops_.linear_of_experts_grad_weight(dy.narrow(1, begin, count).contiguous(), dy_rows, part_of(u_PR, j),
                                       RowsAre::kPlaces, rows_of(db_XNR.memory, j, routing), routing, db_XNR.use);
  }
  const GradientTarget da_XRK = sink(a_name_);
  ops_.linear_of_experts_grad_weight(narrowed_gradient(dy, dy_rows, routing), RowsAre::kPlaces, x, x_rows,
                                     da_XRK.memory, routing, da_XRK.use);
}

}  // namespace tandem::model
