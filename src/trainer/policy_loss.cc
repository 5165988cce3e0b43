#include "trainer/policy_loss.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/check.h"
#include "device/transfer.h"

namespace tandem::trainer {
namespace {

// Null where the sample has none; otherwise there must be one for each token.
const float* per_token(const std::vector<float>& values, const rl::Sample& sample, const char* what) {
  if (values.empty()) return nullptr;
  TANDEM_CHECK_EQ(values.size(), sample.completion.size(), what, "of sample", sample.sample_id);
  return values.data();
}

// One advantage for the sample, or one for each token; empty where the loss reads none.
std::vector<double> token_advantages(const rl::Sample& sample) {
  if (sample.advantages.size() == 1) return std::vector<double>(sample.completion.size(), sample.advantages[0]);
  TANDEM_CHECK(sample.advantages.empty() || sample.advantages.size() == sample.completion.size(),
               sample.advantages.size(), "advantages of sample", sample.sample_id);
  return sample.advantages;
}

at::Tensor float_tensor(const std::vector<double>& values, at::Device device) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kFloat);
  std::transform(values.begin(), values.end(), tensor.mutable_data_ptr<float>(),
                 [](double value) { return static_cast<float>(value); });
  return device::to_device(tensor, device);
}

bool all_zero(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return value == 0.0; });
}

}  // namespace

std::vector<uint8_t> trained_tokens(const rl::Sample& sample) {
  TANDEM_CHECK_EQ(sample.loss_mask.size(), sample.completion.size(), "loss mask of sample", sample.sample_id);
  return sample.remove ? std::vector<uint8_t>(sample.loss_mask.size(), 0) : sample.loss_mask;
}

LossTerms policy_loss(const rl::LossConfig& config, const PackedBatch& batch, const TokenScores& scores,
                      rl::LossSums& sums) {
  const auto num_targets = static_cast<size_t>(batch.num_targets());
  const bool has_entropy_term = config.entropy_coef != 0.0;
  const at::Tensor logprobs_R = device::to_host(scores.logprobs_R), entropy_R = device::to_host(scores.entropy_R);
  std::vector<double> dlogprobs(num_targets), dentropy(has_entropy_term ? num_targets : 0);
  for (size_t s = 0; s < batch.samples.size(); ++s) {
    const rl::Sample& sample = *batch.samples[s];
    const int64_t begin = batch.target_offsets[s];
    if (sample.completion.empty()) continue;  // it adds 0 to every sum
    const std::vector<uint8_t> mask = trained_tokens(sample);
    const std::vector<double> advantages = token_advantages(sample);
    rl::LossInput input;
    input.length = batch.target_offsets[s + 1] - begin;
    input.logprobs = logprobs_R.const_data_ptr<float>() + begin;
    input.entropy = entropy_R.const_data_ptr<float>() + begin;
    input.old_logprobs = per_token(sample.rollout_logprobs, sample, "rollout log-probs");
    input.rollout_logprobs = input.old_logprobs;
    input.behavior_logprobs = per_token(sample.behavior_logprobs, sample, "sampled log-probs");
    input.ref_logprobs = per_token(sample.ref_logprobs, sample, "reference log-probs");
    input.mask = mask.data();
    input.advantages = advantages.empty() ? nullptr : advantages.data();
    rl::accumulate_loss(
        config, input,
        {.dlogprobs = dlogprobs.data() + begin, .dentropy = has_entropy_term ? dentropy.data() + begin : nullptr},
        sums);
  }
  const at::Device device = scores.logprobs_R.device();
  return {.dlogprobs_R = float_tensor(dlogprobs, device),
          .dentropy_R = has_entropy_term ? float_tensor(dentropy, device) : at::Tensor(),
          .is_zero = all_zero(dlogprobs) && all_zero(dentropy)};
}

}  // namespace tandem::trainer
