// The one place where a weight multiplies. Every matrix product of a model with its weights goes through here, so what
// changes such a product (adapters, shards, quantised weights) has one home.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "device/ops.h"
#include "weights/store.h"

namespace tandem::model {

// Where the gradient of a packed tensor accumulates: float32, the packed shape.
struct GradientTarget {
  at::Tensor memory;
  device::GradientUse use;  // kSet: nothing has been added yet, and the memory holds anything

  // For operations that only add: zeros where nothing has been added.
  const at::Tensor& accumulator() const;
};
// Each target that it gives is filled before the next of that tensor is asked for.
using GradientSink = std::function<GradientTarget(const std::string& packed_name)>;

// A packed matrix w_NK, by name, and its bias_N if it has one. Knows no autograd: the pieces of a block call forward()
// and backward() themselves.
class Linear {
 public:
  // bias_name: empty: none.
  Linear(const device::Ops& ops, std::string packed_name, std::string bias_name = "")
      : ops_(ops), name_(std::move(packed_name)), bias_name_(std::move(bias_name)) {}

  const std::string& name() const { return name_; }
  const at::Tensor& weight() const { return weight_NK_; }
  void bind(const weights::WeightsView& view);

  // x_TK -> y_TN in the model dtype, or in `out` (without a bias). The bias is added to the rounded product.
  at::Tensor forward(const at::Tensor& x_TK) const { return forward(x_TK, weight_NK_.scalar_type()); }
  at::Tensor forward(const at::Tensor& x_TK, at::ScalarType out) const;

  // residual_TN + forward(x_TK), in the model dtype.
  at::Tensor forward_add(const at::Tensor& x_TK, const at::Tensor& residual_TN) const;

  // Adds the gradients of weight and bias to the sink and returns dx_TK in the model dtype. x_TK: what forward() was
  // given.
  at::Tensor backward(const at::Tensor& dy_TN, const at::Tensor& x_TK, const GradientSink& sink) const;

 private:
  const device::Ops& ops_;
  std::string name_, bias_name_;
  at::Tensor weight_NK_, bias_N_;  // bias_N_: undefined where there is none
};

}  // namespace tandem::model
