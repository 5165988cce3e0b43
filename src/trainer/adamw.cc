#include "trainer/adamw.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "device/transfer.h"

namespace tandem::trainer {
namespace {

constexpr const char* kHalfUpdated = "the optimizer state is half updated; go on from the last checkpoint";

// The weight is the rounding of its master, wherever that lies; a few MiB at a time.
void round_into(const at::Tensor& weight, const at::Tensor& master) {
  for (int64_t begin = 0; begin < weight.numel(); begin += kOffloadPieceElements) {
    const int64_t count = std::min(kOffloadPieceElements, weight.numel() - begin);
    // Rounded where the master is: half the bytes cross, from memory that nobody changes meanwhile.
    const at::Tensor rounded = master.narrow(0, begin, count).to(weight.scalar_type());
    weight.narrow(0, begin, count).copy_(device::to_device(rounded, weight.device()));
  }
}

}  // namespace

AdamW::AdamW(const AdamWConfig& config, weights::WeightStore& store, const device::Ops& ops,
             const std::optional<OptimizerOffload>& offload)
    : config_(config), ops_(ops), gradients_(store) {
  std::vector<at::Tensor> flat;
  for (const weights::PackedTensor& packed : store.layout().tensors) {
    const bool decays = config.weight_decay_all || packed.decays;
    index_[packed.name] = parameters_.size();
    parameters_.push_back(
        {.packed = &packed, .weight = store.tensor(packed.name), .weight_decay = decays ? config.weight_decay : 0.0});
    flat.push_back(parameters_.back().weight.view(-1));
  }
  state_ = offload ? make_offloaded_state(std::move(flat), *offload) : make_resident_state(std::move(flat));
}

void AdamW::begin_step() { gradients_.begin_step(); }

size_t AdamW::index_of(const std::string& packed_name) const {
  const auto found = index_.find(packed_name);
  TANDEM_CHECK(found != index_.end(), "no packed tensor", packed_name);
  return found->second;
}

at::Tensor AdamW::gradient(const std::string& packed_name) { return gradients_.accumulator(index_of(packed_name)); }

model::GradientTarget AdamW::gradient_target(const std::string& packed_name) {
  return gradients_.target(index_of(packed_name));
}

const at::Tensor& AdamW::last_gradient(const std::string& packed_name) const {
  return gradients_.last(index_of(packed_name));
}

double AdamW::gradient_norm() {
  double sum = 0.0;
  for (size_t p = 0; p < parameters_.size(); ++p) sum += ops_.sum_of_squares(gradients_.accumulator(p));
  return std::sqrt(sum);
}

void AdamW::step(double lr, double grad_scale) {
  check_whole();
  const at::NoGradGuard without_graph;
  try {
    state_->update([&](const StatePiece& piece) {
      is_half_updated_ = true;
      update(piece, lr, grad_scale);
    });
  } catch (const EnvironmentError& error) {
    throw EnvironmentError(std::string("the optimizer step is lost: ") + error.what() +
                           (is_half_updated_ ? std::string("; ") + kHalfUpdated : ""));
  }
  is_half_updated_ = false;
  ++num_steps_;
}

void AdamW::update(const StatePiece& piece, double lr, double grad_scale) {
  const Parameter& p = parameters_[piece.parameter];
  const at::Tensor weight = p.weight.view(-1).narrow(0, piece.begin, piece.count);
  const at::Tensor gradient = gradients_.accumulator(piece.parameter).view(-1).narrow(0, piece.begin, piece.count);
  ops_.adamw(weight, piece.tensors.master, gradient, piece.tensors.exp_avg, piece.tensors.exp_avg_sq,
             {.lr = lr,
              .beta1 = config_.beta1,
              .beta2 = config_.beta2,
              .eps = config_.eps,
              .weight_decay = p.weight_decay,
              .grad_scale = grad_scale,
              .step = num_steps_ + 1});
}

void AdamW::check_whole() const { TANDEM_ENV_CHECK(!is_half_updated_, kHalfUpdated); }

std::vector<OptimizerTensor> AdamW::state() const {
  check_whole();
  const std::vector<StateTensors> tensors = state_->tensors();
  std::vector<OptimizerTensor> state;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const auto& [packed, weight, weight_decay] = parameters_[p];
    state.push_back({StateKind::kExpAvg, packed, 0, tensors[p].exp_avg.view(weight.sizes())});
    state.push_back({StateKind::kExpAvgSq, packed, 0, tensors[p].exp_avg_sq.view(weight.sizes())});
    state.push_back({StateKind::kMaster, packed, 0, tensors[p].master.view(weight.sizes())});
  }
  std::ranges::sort(state, {}, [](const OptimizerTensor& one) { return std::tie(one.kind, one.packed->name); });
  return state;
}

void AdamW::restore(int64_t num_steps) {
  check_whole();
  const at::NoGradGuard without_graph;
  const std::vector<StateTensors> tensors = state_->tensors();
  num_steps_ = num_steps;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const at::Tensor weight = parameters_[p].weight.view(-1);
    if (weight.const_data_ptr() != tensors[p].master.const_data_ptr()) round_into(weight, tensors[p].master);
  }
}

}  // namespace tandem::trainer
