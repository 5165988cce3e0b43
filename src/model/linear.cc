#include "model/linear.h"

namespace tandem::model {

at::Tensor Linear::forward(const at::Tensor& x_TK, at::ScalarType out) const {
  return ops_.linear(x_TK, weight_NK_, out);
}

at::Tensor Linear::backward(const at::Tensor& dy_TN, const at::Tensor& x_TK, const GradientSink& sink) const {
  ops_.linear_grad_weight(dy_TN, x_TK, sink(name_));
  return ops_.linear_grad_input(dy_TN, weight_NK_);
}

}  // namespace tandem::model
