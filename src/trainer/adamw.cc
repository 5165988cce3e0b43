#include "trainer/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "base/check.h"

namespace tandem::trainer {

AdamW::AdamW(const AdamWConfig& config, weights::WeightStore& store, const device::Ops& ops)
    : config_(config), ops_(ops) {
  const at::NoGradGuard without_graph;
  for (const weights::PackedTensor& packed : store.layout().tensors) {
    const at::Tensor& weight = store.tensor(packed.name);
    Parameter p;
    p.name = packed.name;
    p.weight = weight.view(-1);
    p.master = store.dtype() == at::kFloat ? p.weight : p.weight.to(at::kFloat);
    const at::TensorOptions wide = weight.options().dtype(at::kFloat);
    p.exp_avg = at::zeros({weight.numel()}, wide);
    p.exp_avg_sq = at::zeros({weight.numel()}, wide);
    p.gradient = at::empty(weight.sizes(), wide);
    p.weight_decay = config.weight_decay_all || packed.shape.size() == 2 ? config.weight_decay : 0.0;
    index_[packed.name] = parameters_.size();
    parameters_.push_back(std::move(p));
  }
}

void AdamW::begin_step() {
  for (Parameter& p : parameters_) p.has_gradient = false;
}

const at::Tensor& AdamW::gradient_of(Parameter& p) {
  if (!p.has_gradient) p.gradient.zero_();
  p.has_gradient = true;
  return p.gradient;
}

size_t AdamW::index_of(const std::string& packed_name) const {
  const auto found = index_.find(packed_name);
  TANDEM_CHECK(found != index_.end(), "no packed tensor", packed_name);
  return found->second;
}

at::Tensor AdamW::gradient(const std::string& packed_name) { return gradient_of(parameters_[index_of(packed_name)]); }

const at::Tensor& AdamW::last_gradient(const std::string& packed_name) const {
  const Parameter& p = parameters_[index_of(packed_name)];
  TANDEM_CHECK(p.has_gradient, "no step has ended; gradient of", packed_name);
  return p.gradient;
}

double AdamW::gradient_norm() {
  double sum = 0.0;
  for (Parameter& p : parameters_) sum += ops_.sum_of_squares(gradient_of(p));
  return std::sqrt(sum);
}

void AdamW::step(double lr, double grad_scale) {
  const at::NoGradGuard without_graph;
  ++num_steps_;
  for (Parameter& p : parameters_) {
    ops_.adamw(p.weight, p.master, gradient_of(p).view(-1), p.exp_avg, p.exp_avg_sq,
               {.lr = lr,
                .beta1 = config_.beta1,
                .beta2 = config_.beta2,
                .eps = config_.eps,
                .weight_decay = p.weight_decay,
                .grad_scale = grad_scale,
                .step = num_steps_});
  }
}

std::map<std::string, at::Tensor> AdamW::state() const {
  std::map<std::string, at::Tensor> state;
  for (const Parameter& p : parameters_) {
    state["master." + p.name] = p.master.view(p.gradient.sizes());
    state["exp_avg." + p.name] = p.exp_avg.view(p.gradient.sizes());
    state["exp_avg_sq." + p.name] = p.exp_avg_sq.view(p.gradient.sizes());
  }
  return state;
}

void AdamW::restore(int64_t num_steps) {
  const at::NoGradGuard without_graph;
  num_steps_ = num_steps;
  for (Parameter& p : parameters_) {
    if (!p.weight.is_same(p.master)) p.weight.copy_(p.master);
  }
}

}  // namespace tandem::trainer
