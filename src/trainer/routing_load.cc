#include "trainer/routing_load.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "device/communicator.h"
#include "memory/arena_allocator.h"

namespace tandem::trainer {
namespace {

using at::Tensor;

// An entropy is at most ln X, so it is less than 2^24 units, up to which float32 has every integer: no device needs
// float64 for it. A sum stays below 2^53, up to which the host's float64 has every integer, for 10^9 tokens.
constexpr double kUnitsOfOne = 1 << 20;

// A number that is not finite counts as 0: the step is skipped for it, and says so.
Tensor sum_in_units(const Tensor& x_T) {
  return x_T.mul(kUnitsOfOne).nan_to_num_(0.0, 0.0, 0.0).round_().to(at::kLong).sum();
}

}  // namespace

RoutingLoad::RoutingLoad(const model::ModelConfig& config, const device::Ops& ops, bool logs_layers)
    : ops_(ops),
      layers_(config.num_layers),
      experts_(config.experts->count),
      chosen_(config.experts->chosen),
      logs_layers_(logs_layers) {}

void RoutingLoad::begin_step() {
  const at::NoGradGuard without_graph;
  const memory::TagScope scope(memory::Tag::kBatch);
  sums_ = at::zeros({layers_, experts_ + 2}, at::TensorOptions().dtype(at::kLong).device(ops_.device()));
}

void RoutingLoad::routed(int64_t layer, const Tensor& logits_TX, const device::Routing& routing) {
  const at::NoGradGuard without_graph;
  const Tensor sums = sums_[layer];
  sums.narrow(0, 0, experts_).add_(routing.offsets_X1.diff());
  const int64_t tokens = routing.num_tokens();
  const Tensor logprob_T = at::empty({tokens}, logits_TX.options()), entropy_T = at::empty_like(logprob_T),
               logsumexp_T = at::empty_like(logprob_T);
  const Tensor no_targets_T = at::full({tokens}, -1, logits_TX.options().dtype(at::kInt));
  ops_.logprob(logits_TX, no_targets_T, /*temperature=*/1.0, logprob_T, entropy_T, logsumexp_T);
  sums[experts_].add_(sum_in_units(entropy_T));
  sums[experts_ + 1].add_(sum_in_units(routing.weights_TC.amax(1)));
}

std::map<std::string, double> RoutingLoad::end_step(const Ranks& ranks) {
  const Tensor own = ops_.fetch(sums_)->wait().to(at::kDouble).contiguous();
  sums_.reset();
  std::vector<double> sums(own.const_data_ptr<double>(), own.const_data_ptr<double>() + own.numel());
  if (!ranks.is_alone()) {
    const memory::BypassArena messages;
    const std::vector<std::vector<double>> of_ranks = device::all_gather_numbers(ranks.host, sums);
    std::ranges::fill(sums, 0.0);
    for (const std::vector<double>& rank : of_ranks) {
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += rank[i];
    }
  }
  std::map<std::string, double> metrics;
  double max_over_mean = 0.0, unused = 0.0, entropy = 0.0, top1_weight = 0.0, tokens = 0.0;
  for (auto layer = sums.begin(); layer != sums.end(); layer += experts_ + 2) {
    const auto end = layer + experts_;
    double places = 0.0;
    for (auto count = layer; count != end; ++count) places += *count;
    if (places == 0.0) continue;
    const double mean = places / static_cast<double>(experts_);
    const double of_layer = *std::max_element(layer, end) / mean;
    const auto unused_in_layer = static_cast<double>(std::count(layer, end, 0.0));
    if (logs_layers_) {
      const std::string number = std::to_string((layer - sums.begin()) / (experts_ + 2));
      metrics["moe/load_max_over_mean_layer_" + number] = of_layer;
      metrics["moe/unused_experts_layer_" + number] = unused_in_layer;
    }
    max_over_mean = std::max(max_over_mean, of_layer);
    unused = std::max(unused, unused_in_layer);
    entropy += end[0];
    top1_weight += end[1];
    tokens += places / static_cast<double>(chosen_);
  }
  if (tokens == 0.0) return {};
  metrics["moe/load_max_over_mean"] = max_over_mean;
  metrics["moe/unused_experts"] = unused;
  metrics["moe/router_entropy"] = entropy / kUnitsOfOne / tokens;
  metrics["moe/top1_weight"] = top1_weight / kUnitsOfOne / tokens;
  return metrics;
}

}  // namespace tandem::trainer
