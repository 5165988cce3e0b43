#include "model/linear.h"

#include <ATen/ops/cat.h>

#include "base/check.h"

namespace tandem::model {

const at::Tensor& GradientTarget::accumulator() const {
  return memory.defined() && use == device::GradientUse::kSet ? memory.zero_() : memory;
}

GradientTarget GradientSlot::operator()(const std::string& packed_name) const {
  TANDEM_CHECK(sink_ != nullptr, "a gradient of", packed_name, "and no gradient sink");
  return sink_->of(packed_name);
}

void GradientSlot::add(const std::string& packed_name, const at::Tensor& gradient) const {
  if (const GradientTarget target = (*this)(packed_name); target.is_wanted()) target.accumulator().add_(gradient);
}

void Linear::bind(const weights::WeightsView& view) {
  if (const device::QuantisedMatrix* quantised = view.quantised(name_)) {
    TANDEM_CHECK(is_alone(), name_, "is quantised and cannot be spread over tensor ranks");
    quantised_NK_ = *quantised;
  } else {
    weight_NK_ = view[name_];
  }
  if (!bias_name_.empty()) bias_N_ = view[bias_name_];
  TANDEM_CHECK(is_alone() || (!has_adapter() && (cut_ != Cut::kColumns || bias_name_.empty())), name_,
               "cannot be spread over tensor ranks");
  if (!has_adapter()) return;
  a_RK_ = view[a_name_];
  b_NR_ = view[b_name_];
}

at::Tensor Linear::product(const at::Tensor& x_TK, at::ScalarType out) const {
  return quantised_NK_ ? ops_.linear_quantised(x_TK, *quantised_NK_, out) : ops_.linear(x_TK, weight_NK_, out);
}

at::Tensor Linear::forward(const at::Tensor& x_TK, at::ScalarType out) const {
  TANDEM_CHECK(!is_cut_by(Cut::kColumns), name_, "gives a part of each sum");
  at::Tensor y_TN = product(x_TK, out);
  if (bias_N_.defined()) ops_.add_bias(y_TN, bias_N_);
  if (has_adapter()) add_adapter(x_TK, y_TN);
  return y_TN;
}

at::Tensor Linear::forward_add(const at::Tensor& x_TK, const at::Tensor& residual_TN) const {
  if (is_cut_by(Cut::kColumns))
    return stream_.sum(ops_.linear(x_TK, weight_NK_, at::kFloat), residual_TN, residual_TN.scalar_type());
  if (bias_N_.defined()) return ops_.add(residual_TN, forward(x_TK));
  at::Tensor y_TN = quantised_NK_ ? ops_.linear_quantised_add(x_TK, *quantised_NK_, residual_TN)
                                  : ops_.linear_add(x_TK, weight_NK_, residual_TN);
  if (has_adapter()) add_adapter(x_TK, y_TN);
  return y_TN;
}

Linear::InputGradient Linear::input_gradient(const at::Tensor& dy_TN) const {
  InputGradient gradient = {.dx_TK = gradient_by_weight(dy_TN), .du_TR = {}};
  if (!has_adapter()) return gradient;
  gradient.du_TR = narrowed_gradient(dy_TN);
  add_adapter_gradient_to(gradient.dx_TK, gradient.du_TR);
  return gradient;
}

void Linear::add_weight_gradient(const at::Tensor& dy_TN, const at::Tensor& du_TR, const at::Tensor& x_TK,
                                 const GradientSlot& sink) const {
  if (bias_N_.defined()) {
    if (const GradientTarget dbias_N = sink(bias_name_); dbias_N.is_wanted()) {
      ops_.add_bias_backward(dy_TN, dbias_N.accumulator());
    }
  }
  if (const GradientTarget dw_NK = sink(name_); dw_NK.is_wanted()) {
    TANDEM_CHECK(!quantised_NK_, name_, "is quantised and has no gradient");
    ops_.linear_grad_weight(dy_TN, x_TK, dw_NK.memory, dw_NK.use);
  }
  if (has_adapter()) add_adapter_gradient(dy_TN, du_TR, x_TK, sink);
}

at::Tensor Linear::backward(const at::Tensor& dy_TN, const at::Tensor& x_TK, const GradientSlot& sink) const {
  InputGradient gradient = input_gradient(dy_TN);
  add_weight_gradient(dy_TN, gradient.du_TR, x_TK, sink);
  return std::move(gradient.dx_TK);
}

at::Tensor Linear::gradient_by_weight(const at::Tensor& dy_TN) const {
  if (quantised_NK_) return ops_.linear_quantised_grad_input(dy_TN, *quantised_NK_, dy_TN.scalar_type());
  const at::ScalarType dtype = weight_NK_.scalar_type();
  if (!is_cut_by(Cut::kRows)) return ops_.linear_grad_input(dy_TN, weight_NK_, dtype);
  return stream_.sum(ops_.linear_grad_input(dy_TN, weight_NK_, at::kFloat), /*residual=*/{}, dtype);
}

at::Tensor Linear::dropped(const at::Tensor& x_TK, size_t j) const {
  return ops_.dropout(
      x_TK, dropout()->row_keys_T,
      {.rate = dropout()->rate, .stream = adapter_.dropout_stream + static_cast<uint64_t>(adapter_.windows[j].begin)});
}

at::Tensor Linear::narrowed(const at::Tensor& x_TK) const {
  at::Tensor u_TR;
  if (dropout() == nullptr) {
    u_TR = ops_.linear(x_TK, a_RK_, x_TK.scalar_type());
  } else {
    std::vector<at::Tensor> u;
    for (size_t j = 0; j < adapter_.windows.size(); ++j) {
      u.push_back(ops_.linear(dropped(x_TK, j), a_of(a_RK_, j), x_TK.scalar_type()));
    }
    u_TR = u.size() == 1 ? u.front() : at::cat(u, 1);
  }
  return adapter_.scale == 1.0 ? u_TR : u_TR.mul_(adapter_.scale);
}

at::Tensor Linear::part_of(const at::Tensor& u_TR, size_t j) const {
  const int64_t rank = b_NR_.size(1);
  return u_TR.narrow(1, static_cast<int64_t>(j) * rank, rank).contiguous();
}

at::Tensor Linear::a_of(const at::Tensor& a_RK, size_t j) const {
  const int64_t rank = b_NR_.size(1);
  return a_RK.narrow(0, static_cast<int64_t>(j) * rank, rank);
}

void Linear::add_adapter(const at::Tensor& x_TK, const at::Tensor& y_TN) const {
  const at::Tensor u_TR = narrowed(x_TK);
  int64_t row = 0;  // of b
  for (size_t j = 0; j < adapter_.windows.size(); ++j) {
    const auto [begin, count] = adapter_.windows[j];
    ops_.linear_add_to(part_of(u_TR, j), b_NR_.narrow(0, row, count), y_TN.narrow(1, begin, count));
    row += count;
  }
}

at::Tensor Linear::narrowed_gradient(const at::Tensor& dy_TN) const {
  std::vector<at::Tensor> du;
  int64_t row = 0;
  for (const auto [begin, count] : adapter_.windows) {
    const at::Tensor dy_j = dy_TN.narrow(1, begin, count).contiguous();
    du.push_back(ops_.linear_grad_input(dy_j, b_NR_.narrow(0, row, count), b_NR_.scalar_type()));
    row += count;
  }
  at::Tensor du_TR = du.size() == 1 ? du.front() : at::cat(du, 1);
  return adapter_.scale == 1.0 ? du_TR : du_TR.mul_(adapter_.scale);
}

void Linear::add_adapter_gradient_to(const at::Tensor& dx_TK, const at::Tensor& du_TR) const {
  if (dropout() == nullptr) {
    dx_TK.add_(ops_.linear_grad_input(du_TR, a_RK_, a_RK_.scalar_type()));
    return;
  }
  for (size_t j = 0; j < adapter_.windows.size(); ++j) {
    dx_TK.add_(dropped(ops_.linear_grad_input(part_of(du_TR, j), a_of(a_RK_, j), a_RK_.scalar_type()), j));
  }
}

void Linear::add_adapter_gradient(const at::Tensor& dy_TN, const at::Tensor& du_TR, const at::Tensor& x_TK,
                                  const GradientSlot& sink) const {
  const GradientTarget db_NR = sink(b_name_), da_RK = sink(a_name_);
  {
    const at::Tensor u_TR = narrowed(x_TK);
    int64_t row = 0;
    for (size_t j = 0; j < adapter_.windows.size(); ++j) {
      const auto [begin, count] = adapter_.windows[j];
      ops_.linear_grad_weight(dy_TN.narrow(1, begin, count).contiguous(), part_of(u_TR, j),
                              db_NR.memory.narrow(0, row, count), db_NR.use);
      row += count;
    }
  }
  if (dropout() == nullptr) return ops_.linear_grad_weight(du_TR, x_TK, da_RK.memory, da_RK.use);
  for (size_t j = 0; j < adapter_.windows.size(); ++j)
    ops_.linear_grad_weight(part_of(du_TR, j), dropped(x_TK, j), a_of(da_RK.memory, j), da_RK.use);
}

}  // namespace tandem::model
