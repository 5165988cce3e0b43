// Multiplies by a weight matrix of experts (device/experts.h): the row of each place by its expert's part.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>

#include "device/experts.h"
#include "device/ops.h"
#include "model/linear.h"
#include "weights/store.h"

namespace tandem::model {

// A packed matrix w_XNK, by name: what Ops::mlp_of_experts() multiplies by, and its gradients. Over several tensor
// ranks N or K is that of the part, and what is a part of a sum is float32: a row that was multiplied by columns of w,
// or, as a gradient, by rows of it. Who adds up the rows of a token's places adds up the ranks' too.
class ExpertsLinear {
 public:
  ExpertsLinear(const device::Ops& ops, std::string packed_name) : ops_(ops), name_(std::move(packed_name)) {}

  void bind(const weights::WeightsView& view) { weight_XNK_ = view[name_]; }
  const at::Tensor& weight() const { return weight_XNK_; }
  // Returns dx_PK in `out`, and adds no gradient of the weight.
  at::Tensor input_gradient(const at::Tensor& dy, device::RowsAre dy_rows, const device::Routing& routing,
                            at::ScalarType out) const {
    return ops_.linear_of_experts_grad_input(dy, dy_rows, weight_XNK_, routing, out);
  }
  // Adds the weight's gradient to the sink, if it wants it. x is what w was multiplied by.
  void add_weight_gradient(const at::Tensor& dy, device::RowsAre dy_rows, const at::Tensor& x, device::RowsAre x_rows,
                           const device::Routing& routing, const GradientSlot& sink) const {
    const GradientTarget dw_XNK = sink(name_);
    if (!dw_XNK.is_wanted()) return;
    ops_.linear_of_experts_grad_weight(dy, dy_rows, x, x_rows, dw_XNK.memory, routing, dw_XNK.use);
  }

 private:
  const device::Ops& ops_;
  std::string name_;
  at::Tensor weight_XNK_;
};

}  // namespace tandem::model
