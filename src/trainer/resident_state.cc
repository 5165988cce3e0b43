// Masters and moments beside the weights, in device memory: a parameter is one piece.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "trainer/optimizer_state.h"

namespace tandem::trainer {
namespace {

class ResidentState final : public OptimizerState {
 public:
  explicit ResidentState(const std::vector<at::Tensor>& weights) {
    const at::NoGradGuard without_graph;
    for (const at::Tensor& weight : weights) {
      const at::TensorOptions wide = weight.options().dtype(at::kFloat);
      parameters_.push_back({.master = weight.to(at::kFloat),  // the weight itself where it is float32
                             .exp_avg = at::zeros({weight.numel()}, wide),
                             .exp_avg_sq = at::zeros({weight.numel()}, wide)});
    }
  }

  void update(const Update& update) override {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      if (parameters_[p].master.numel() == 0) continue;
      update({.parameter = p, .begin = 0, .count = parameters_[p].master.numel(), .tensors = parameters_[p]});
    }
  }

  std::vector<StateTensors> tensors() override { return parameters_; }

 private:
  std::vector<StateTensors> parameters_;
};

}  // namespace

std::unique_ptr<OptimizerState> make_resident_state(std::vector<at::Tensor> weights) {
  return std::make_unique<ResidentState>(weights);
}

}  // namespace tandem::trainer
