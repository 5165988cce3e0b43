#include "trainer/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "device/communicator.h"
#include "device/transfer.h"
#include "memory/arena_allocator.h"

namespace tandem::trainer {
namespace {

constexpr const char* kHalfUpdated = "the optimizer state is half updated; resume from the last checkpoint";

// The weight is the rounding of its master, wherever that lies; this is done a few MiB at a time.
void round_into(const at::Tensor& weight, const at::Tensor& master) {
  for (int64_t begin = 0; begin < weight.numel(); begin += kOffloadPieceElements) {
    const int64_t count = std::min(kOffloadPieceElements, weight.numel() - begin);
    // It is rounded where the master is: half the bytes cross, from memory that nobody changes meanwhile.
    const at::Tensor rounded = master.narrow(0, begin, count).to(weight.scalar_type());
    weight.narrow(0, begin, count).copy_(device::to_device(rounded, weight.device()));
  }
}

// Adds the ranks' sums of squares of blocks, each in tensor order, in tensor and block order.
double sum_of_blocks(const Ranks& ranks, const std::vector<const weights::PackedTensor*>& tensors,
                     const std::vector<double>& own) {
  if (ranks.is_alone()) return std::accumulate(own.begin(), own.end(), 0.0);
  const memory::BypassArena messages;
  const auto blocks_of = [&](const weights::PackedTensor& packed, int rank) {
    return num_blocks(packed.shape, {.rank = rank, .size = ranks.size()});
  };
  device::TensorLists parts(static_cast<size_t>(ranks.size()));
  std::vector<const double*> next;  // next sum of each rank
  for (int r = 0; r < ranks.size(); ++r) {
    int64_t count = 0;
    for (const weights::PackedTensor* packed : tensors) count += blocks_of(*packed, r);
    at::Tensor sums = at::empty({count}, at::kDouble);
    if (r == ranks.rank()) std::ranges::copy(own, sums.mutable_data_ptr<double>());
    next.push_back(sums.const_data_ptr<double>());
    if (count > 0) parts[static_cast<size_t>(r)].push_back(std::move(sums));
  }
  device::all_gather(ranks.host, parts);
  double sum = 0.0;
  for (const weights::PackedTensor* packed : tensors) {
    for (int r = 0; r < ranks.size(); ++r) {
      for (int64_t b = 0; b < blocks_of(*packed, r); ++b) sum += *next[static_cast<size_t>(r)]++;
    }
  }
  return sum;
}

}  // namespace

AdamW::AdamW(const AdamWConfig& config, weights::WeightStore& store, const device::Ops& ops,
             const std::optional<OptimizerOffload>& offload, const Ranks& ranks)
    : config_(config), ops_(ops), ranks_(ranks), gradients_(store, ranks.shard()) {
  std::vector<at::Tensor> flat;
  for (const weights::PackedTensor& packed : store.layout().tensors) {
    const bool decays = config.weight_decay_all || packed.decays;
    index_[packed.name] = parameters_.size();
    parameters_.push_back({.packed = &packed,
                           .weight = store.tensor(packed.name),
                           .rows = rows_of(packed.shape, ranks.shard()),
                           .weight_decay = decays ? config.weight_decay : 0.0});
    flat.push_back(own_rows(parameters_.back()).view(-1));
  }
  state_ = offload ? make_offloaded_state(std::move(flat), *offload) : make_resident_state(std::move(flat));
}

at::Tensor AdamW::own_rows(const Parameter& parameter) const {
  return parameter.weight.narrow(0, parameter.rows.begin, parameter.rows.count());
}

std::vector<at::Tensor> AdamW::weights_of(int rank) const {
  std::vector<at::Tensor> weights;
  for (const Parameter& p : parameters_) {
    const Rows rows = rows_of(p.packed->shape, {.rank = rank, .size = ranks_.size()});
    if (rows.count() > 0) weights.push_back(p.weight.narrow(0, rows.begin, rows.count()));
  }
  return weights;
}

void AdamW::gather_weights() const {
  if (ranks_.is_alone()) return;
  if (works_in_two_levels(ranks_.size(), ranks_.group_size)) return gather_weights_in_two_levels();
  device::TensorLists parts;
  for (int r = 0; r < ranks_.size(); ++r) parts.push_back(weights_of(r));
  device::all_gather(ranks_.device, parts);
}

// First each rank gets the rows of the ranks that have its place in other groups, then neighbours hand each other what
// they have: so rows come into a group once, not once for each of its ranks.
void AdamW::gather_weights_in_two_levels() const {
  const auto n = static_cast<int>(ranks_.group_size);
  const int num_groups = ranks_.size() / n, group = ranks_.rank() / n, place = ranks_.rank() % n;
  const auto size = static_cast<size_t>(ranks_.size());
  if (num_groups > 1) {
    device::TensorLists to(size), from(size);
    for (int r = place; r < ranks_.size(); r += n) {
      if (r == ranks_.rank()) continue;
      to[static_cast<size_t>(r)] = weights_of(ranks_.rank());
      from[static_cast<size_t>(r)] = weights_of(r);
    }
    ranks_.device.start_exchange(std::move(to), std::move(from))->wait();
  }
  device::TensorLists to(size), from(size);
  for (int mate = 0; mate < n; ++mate) {
    if (mate == place) continue;
    const auto r = static_cast<size_t>(group * n + mate);
    for (int g = 0; g < num_groups; ++g) {
      std::ranges::move(weights_of(g * n + place), std::back_inserter(to[r]));
      std::ranges::move(weights_of(g * n + mate), std::back_inserter(from[r]));
    }
  }
  ranks_.device.start_exchange(std::move(to), std::move(from))->wait();
}

void AdamW::begin_step() { gradients_.begin_step(); }

size_t AdamW::index_of(const std::string& packed_name) const {
  const auto found = index_.find(packed_name);
  TANDEM_CHECK(found != index_.end(), "no packed tensor", packed_name);
  return found->second;
}

at::Tensor AdamW::gradient(const std::string& packed_name) { return gradients_.accumulator(index_of(packed_name)); }

const at::Tensor& AdamW::last_gradient(const std::string& packed_name) const {
  return gradients_.last(index_of(packed_name));
}

// Returns the sum of squares of all gradients, of those of tensors that every rank holding a part of the model has
// whole, or of the others.
template <typename IsMeant>
double AdamW::sum_of_squares(IsMeant is_meant) {
  std::vector<double> own;
  std::vector<const weights::PackedTensor*> tensors;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const weights::PackedTensor& packed = *parameters_[p].packed;
    if (!is_meant(packed)) continue;
    const int64_t block_elements = rows_of_block(packed.shape) * elements_of_row(packed.shape);
    const std::vector<double> sums = ops_.sums_of_squares(gradients_.accumulator(p), block_elements);
    own.insert(own.end(), sums.begin(), sums.end());
    tensors.push_back(&packed);
  }
  return sum_of_blocks(ranks_, tensors, own);
}

double AdamW::gradient_norm() {
  if (ranks_.parts.size() == 1) {
    return std::sqrt(sum_of_squares([](const weights::PackedTensor& /*packed*/) { return true; }));
  }
  double sum = sum_of_squares([](const weights::PackedTensor& packed) { return packed.is_whole(); });
  const double part = sum_of_squares([](const weights::PackedTensor& packed) { return !packed.is_whole(); });
  const memory::BypassArena messages;
  for (const std::vector<double>& of_part : device::all_gather_numbers(ranks_.parts, {&part, 1})) sum += of_part[0];
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
    is_half_updated_ = true;  // stays set as long as the other ranks' rows are missing
    gather_weights();
  } catch (const device::PeerLost&) {
    throw;  // the message says enough
  } catch (const EnvironmentError& error) {
    throw EnvironmentError(std::string("the optimizer step is lost: ") + error.what() +
                           (is_half_updated_ ? std::string("; ") + kHalfUpdated : ""));
  }
  is_half_updated_ = false;
  ++num_steps_;
}

void AdamW::update(const StatePiece& piece, double lr, double grad_scale) {
  const Parameter& p = parameters_[piece.parameter];
  if (p.packed->is_frozen) return;
  const at::Tensor weight = own_rows(p).view(-1).narrow(0, piece.begin, piece.count);
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
    const Parameter& parameter = parameters_[p];
    if (parameter.rows.count() == 0) continue;
    const std::vector<int64_t> shape = own_rows(parameter).sizes().vec();
    const auto add = [&](StateKind kind, const at::Tensor& tensor) {
      state.push_back({kind, parameter.packed, tensor.view(shape), parameter.rows.begin});
    };
    add(StateKind::kExpAvg, tensors[p].exp_avg);
    add(StateKind::kExpAvgSq, tensors[p].exp_avg_sq);
    add(StateKind::kMaster, tensors[p].master);
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
    const at::Tensor weight = own_rows(parameters_[p]).view(-1);
    if (weight.const_data_ptr() != tensors[p].master.const_data_ptr()) round_into(weight, tensors[p].master);
  }
  gather_weights();
}

}  // namespace tandem::trainer
