// Multiplies by a weight matrix of experts (device/experts.h): the row of each place by its expert's part. It is to the
// MLP of a sparse model what model/linear.h is to other matrices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "device/experts.h"
#include "device/ops.h"
#include "model/linear.h"
#include "weights/store.h"

namespace tandem::model {

// A packed matrix w_XNK, by name, computes for the place of a token at expert e, with the expert's adapter if it has
// one,
//   y = x w[e]^T;  then for each window j, u = scale * (x a[e]^T): y_j += u_j b_j[e]^T
// each product rounded. The windows are columns of one expert's y.
//
// The adapter's a_XRK has the A of an expert's windows one below the other, then those of the next expert, so that one
// product gives all u; its b_XNR has the B of the first window for all experts, then those of the next window, so that
// each window's are a matrix of experts too (model/lora.h).
//
// A quantised matrix computes with the bfloat16 weights that it stands for. It is frozen, and no part of a matrix.
//
// Over several tensor ranks N or K is that of the part, no part has an adapter, and what is a part of a sum is float32:
// a row that was multiplied by columns of w (`out` of forward()), or by rows of it (of backward()). Who adds up the
// rows of a token's places adds up the ranks' too.
class ExpertsLinear {
 public:
  ExpertsLinear(const device::Ops& ops, std::string packed_name, Adapter adapter)
      : ops_(ops),
        name_(std::move(packed_name)),
        a_name_(name_ + kLoraA),
        b_name_(name_ + kLoraB),
        adapter_(std::move(adapter)) {}

  void bind(const weights::WeightsView& view);
  // Whether weight() is all that it computes with.
  bool is_plain() const { return !has_adapter() && !quantised_XNK_; }
  // Returns w_XNK, for operations of several matrices, which know neither adapters nor quantised matrices.
  const at::Tensor& weight() const { return weight_XNK_; }
  // Returns y_PN in `out`: float32 or the model dtype.
  at::Tensor forward(const at::Tensor& x, device::RowsAre x_rows, const device::Routing& routing,
                     at::ScalarType out) const;
  // Returns dx_PK in `out`, and adds no gradient of a weight.
  at::Tensor input_gradient(const at::Tensor& dy, device::RowsAre dy_rows, const device::Routing& routing,
                            at::ScalarType out) const;
  // Adds the gradients of weight and adapter to the sink, as far as it wants them. x is what forward() was given; where
  // the rows of dy still lack a factor for each place, such as the weight of its expert, x has it instead.
  void add_weight_gradient(const at::Tensor& dy, device::RowsAre dy_rows, const at::Tensor& x, device::RowsAre x_rows,
                           const device::Routing& routing, const GradientSlot& sink) const;

 private:
  bool has_adapter() const { return !adapter_.windows.empty(); }
  // Returns u_PR of all windows, side by side: scale * (x a^T).
  at::Tensor narrowed(const at::Tensor& x, device::RowsAre x_rows, const device::Routing& routing) const;
  // Returns the gradient of x a^T, of all windows.
  at::Tensor narrowed_gradient(const at::Tensor& dy, device::RowsAre dy_rows, const device::Routing& routing) const;
  // Returns the columns of u that belong to window j; and its rows of b, or of b's gradient.
  at::Tensor part_of(const at::Tensor& u_PR, size_t j) const;
  at::Tensor rows_of(const at::Tensor& b_XNR, size_t j, const device::Routing& routing) const;
  void add_adapter_gradient(const at::Tensor& dy, device::RowsAre dy_rows, const at::Tensor& x, device::RowsAre x_rows,
                            const device::Routing& routing, const GradientSlot& sink) const;

  const device::Ops& ops_;
  std::string name_, a_name_, b_name_;
  Adapter adapter_;
  at::Tensor weight_XNK_;  // undefined if it is quantised
  std::optional<device::QuantisedMatrix> quantised_XNK_;
  at::Tensor a_XRK_, b_XNR_;  // undefined without an adapter
};

}  // namespace tandem::model
