#include "trainer/balance_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include "base/check.h"
#include "device/communicator.h"
#include "device/sum_by_halves.h"
#include "device/transfer.h"
#include "memory/arena_allocator.h"

namespace tandem::trainer {
namespace {

using at::Tensor;

// A row's share of a loss is small, and float32 times a power of two is exact. A step's sum stays below 2^53, up to
// which the host's float64 has every integer, for 10^6 samples of an equal load.
constexpr double kUnitsOfOne = 4294967296.0;

template <typename T>
Tensor on_device(const std::vector<T>& values, at::ScalarType dtype, at::Device device) {
  Tensor host = at::empty({static_cast<int64_t>(values.size())}, dtype);
  if (!values.empty()) std::memcpy(host.mutable_data_ptr(), values.data(), values.size() * sizeof(T));
  return device::to_device(host, device);
}

// Returns the samples that share each prompt, the prompts with most samples first.
std::vector<std::vector<int32_t>> by_prompt(const PackedBatch& batch) {
  std::vector<std::vector<int32_t>> prompts;
  for (size_t s = 0; s < batch.samples.size(); ++s) {
    const RowRange& rows = batch.prompt_rows[s];
    if (s == 0 || rows != batch.prompt_rows[s - 1] || rows.count() == 0) prompts.emplace_back();
    prompts.back().push_back(static_cast<int32_t>(s));
  }
  std::ranges::stable_sort(prompts, std::greater(), [](const auto& samples) { return samples.size(); });
  return prompts;
}

// A number that is not finite counts as 0: the gradient is not finite either, and the step is skipped for it.
Tensor sum_in_units(const Tensor& x) {
  return x.mul(kUnitsOfOne).nan_to_num_(0.0, 0.0, 0.0).round_().to(at::kLong).sum();
}

}  // namespace

BalanceLoss::BalanceLoss(const model::ModelConfig& config, const device::Ops& ops)
    : ops_(ops), layers_(config.num_layers), experts_(config.experts->count), chosen_(config.experts->chosen) {}

void BalanceLoss::begin_step(double factor) {
  const at::NoGradGuard without_graph;
  const memory::TagScope scope(memory::Tag::kBatch);
  factor_ = factor;
  sum_ = at::zeros({1}, at::TensorOptions().dtype(at::kLong).device(ops_.device()));
}

bool BalanceLoss::begin_batch(const PackedBatch& batch, const std::vector<bool>& counts) {
  segments_ = {};
  if (std::ranges::find(counts, true) == counts.end()) return false;
  const at::NoGradGuard without_graph;
  const memory::TagScope scope(memory::Tag::kBatch);
  const std::vector<std::vector<int32_t>> samples_of_prompt = by_prompt(batch);
  const size_t num_samples = batch.samples.size(), num_prompts = samples_of_prompt.size();
  std::vector<int32_t> of_row(static_cast<size_t>(batch.num_tokens())), prompt_of(num_samples), own_of(num_samples);
  std::vector<float> scale(num_samples);
  const auto set_rows = [&](const RowRange& rows, int32_t segment) {
    std::fill(of_row.begin() + rows.begin, of_row.begin() + rows.end, segment);
  };
  for (size_t p = 0; p < num_prompts; ++p) {
    for (const int32_t sample : samples_of_prompt[p]) {
      const auto s = static_cast<size_t>(sample);
      prompt_of[s] = static_cast<int32_t>(p);
      own_of[s] = static_cast<int32_t>(num_prompts + s);
      set_rows(batch.prompt_rows[s], prompt_of[s]);
      set_rows(batch.own_rows[s], own_of[s]);
      const auto rows = static_cast<double>(batch.prompt_rows[s].count() + batch.own_rows[s].count());
      const double share = static_cast<double>(experts_) / static_cast<double>(chosen_) / (rows * rows);
      scale[s] = counts[s] ? static_cast<float>(share) : 0.0F;
    }
  }
  std::vector<int32_t> by_turn;
  std::vector<int64_t> prompts_of_turn;
  for (size_t turn = 0; turn < samples_of_prompt.front().size(); ++turn) {
    const size_t before = by_turn.size();
    for (const std::vector<int32_t>& samples : samples_of_prompt)
      if (turn < samples.size()) by_turn.push_back(samples[turn]);
    prompts_of_turn.push_back(static_cast<int64_t>(by_turn.size() - before));
  }
  const at::Device device = ops_.device();
  segments_ = {.of_row_T = on_device(of_row, at::kInt, device),
               .prompt_of_S = on_device(prompt_of, at::kInt, device),
               .own_of_S = on_device(own_of, at::kInt, device),
               .scale_S1 = on_device(scale, at::kFloat, device).unsqueeze(1),
               .by_turn_S = on_device(by_turn, at::kInt, device),
               .prompts_of_turn = prompts_of_turn};
  return true;
}

// The counts are integers, which float32 adds in any order. A prompt's gradients are added sample after sample.
Tensor BalanceLoss::segment_gradients(const device::Routing& routing) const {
  const int64_t prompts = segments_.num_prompts(), num_segments = prompts + segments_.num_samples();
  const auto options = routing.weights_TC.options();
  Tensor counts_NX = at::zeros({num_segments, experts_}, options);
  const Tensor places_P = segments_.of_row_T.unsqueeze(1).mul(experts_).add(routing.ids_TC).flatten().to(at::kLong);
  counts_NX.view(-1).scatter_add_(0, places_P, at::ones({routing.num_places()}, options));
  const Tensor of_samples_SX = counts_NX.index_select(0, segments_.prompt_of_S)
                                   .add_(counts_NX.index_select(0, segments_.own_of_S))
                                   .mul_(segments_.scale_S1);
  Tensor gradients_NX = std::move(counts_NX).zero_();
  gradients_NX.narrow(0, prompts, segments_.num_samples()).copy_(of_samples_SX);
  int64_t begin = 0;
  for (const int64_t count : segments_.prompts_of_turn) {
    gradients_NX.narrow(0, 0, count).add_(of_samples_SX.index_select(0, segments_.by_turn_S.narrow(0, begin, count)));
    begin += count;
  }
  return gradients_NX;
}

// With p the probabilities of a row and g the gradient of P for it: the logits have p (g - sum of p g), and that sum is
// what the row adds to the loss.
Tensor BalanceLoss::logits_gradient(const Tensor& logits_TX, const device::Routing& routing) {
  TANDEM_CHECK_EQ(logits_TX.size(0), segments_.of_row_T.size(0), "rows of another batch");
  const at::NoGradGuard without_graph;
  Tensor p_TX = logits_TX.sub(logits_TX.amax(-1, /*keepdim=*/true)).exp_();
  p_TX.div_(device::sum_by_halves(p_TX.clone()));
  Tensor gradient_TX = segment_gradients(routing).index_select(0, segments_.of_row_T);
  const Tensor loss_T1 = device::sum_by_halves(p_TX.mul(gradient_TX)).clone();
  sum_.add_(sum_in_units(loss_T1));
  return gradient_TX.sub_(loss_T1).mul_(p_TX).mul_(factor_);
}

double BalanceLoss::end_step(const Ranks& ranks) {
  double units = static_cast<double>(ops_.fetch(sum_)->wait().item<int64_t>());
  release();
  if (!ranks.is_alone()) {
    const memory::BypassArena messages;
    const std::vector<std::vector<double>> of_ranks = device::all_gather_numbers(ranks.host, std::array{units});
    units = 0.0;
    for (const std::vector<double>& rank : of_ranks) units += rank[0];
  }
  return units / kUnitsOfOne / static_cast<double>(layers_);
}

void BalanceLoss::release() {
  segments_ = {};
  sum_.reset();
}

}  // namespace tandem::trainer
