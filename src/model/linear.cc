#include "model/linear.h"

namespace tandem::model {

const at::Tensor& GradientTarget::accumulator() const {
  return use == device::GradientUse::kSet ? memory.zero_() : memory;
}

void Linear::bind(const weights::WeightsView& view) {
  weight_NK_ = view[name_];
  if (!bias_name_.empty()) bias_N_ = view[bias_name_];
}

at::Tensor Linear::forward(const at::Tensor& x_TK, at::ScalarType out) const {
  at::Tensor y_TN = ops_.linear(x_TK, weight_NK_, out);
  if (bias_N_.defined()) ops_.add_bias(y_TN, bias_N_);
  return y_TN;
}

at::Tensor Linear::forward_add(const at::Tensor& x_TK, const at::Tensor& residual_TN) const {
  if (bias_N_.defined()) return ops_.add(residual_TN, forward(x_TK));
  return ops_.linear_add(x_TK, weight_NK_, residual_TN);
}

at::Tensor Linear::backward(const at::Tensor& dy_TN, const at::Tensor& x_TK, const GradientSink& sink) const {
  if (bias_N_.defined()) ops_.add_bias_backward(dy_TN, sink(bias_name_).accumulator());
  const GradientTarget dw_NK = sink(name_);
  ops_.linear_grad_weight(dy_TN, x_TK, dw_NK.memory, dw_NK.use);
  return ops_.linear_grad_input(dy_TN, weight_NK_);
}

}  // namespace tandem::model
