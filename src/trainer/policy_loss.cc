#include "trainer/policy_loss.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "device/transfer.h"

namespace tandem::trainer {
namespace {

// Returns null where the sample has none; otherwise there must be one for each token.
const float* per_token(const std::vector<float>& values, const rl::Sample& sample, const char* what) {
  if (values.empty()) return nullptr;
  TANDEM_CHECK_EQ(values.size(), sample.completion.size(), what, "of sample", sample.sample_id);
  return values.data();
}

// Returns the log-probs that a sample brings; those of the current policy are not among them.
rl::LossInput rollout_input(const rl::LossConfig& config, const rl::Sample& sample) {
  rl::LossInput input;
  input.length = static_cast<int64_t>(sample.completion.size());
  input.is_given = sample.is_given;
  input.rollout_logprobs = per_token(sample.rollout_logprobs, sample, "rollout log-probs");
  input.old_logprobs = config.old_logprobs == "proximal"
                           ? per_token(sample.proximal_logprobs, sample, "proximal log-probs")
                           : input.rollout_logprobs;
  input.behavior_logprobs = per_token(sample.behavior_logprobs, sample, "sampled log-probs");
  input.ref_logprobs = per_token(sample.ref_logprobs, sample, "reference log-probs");
  input.teacher_logprobs = per_token(sample.teacher_logprobs, sample, "teacher log-probs");
  return input;
}

// Returns one advantage for the sample, or one for each token; empty where the loss reads none.
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

// The samples, and the index at which each one's targets begin.
struct Targets {
  const std::vector<const rl::Sample*>& samples;
  const std::vector<int64_t>& offsets;
};
// Holds the scores of each target, on the host.
struct HostScores {
  const float *logprobs, *entropy;
  const float* divergence = nullptr;  // null where it is not known yet
};

struct LossGradients {
  std::vector<double> dlogprobs, dentropy;  // dentropy: empty where the loss has no entropy term
  std::vector<double> ddivergence;          // empty where the loss has no term of the whole distributions
  std::vector<rl::LossSums> sums;           // sums of each sample
  LossTerms terms(at::Device device) && {
    return {.dlogprobs_R = float_tensor(dlogprobs, device),
            .dentropy_R = dentropy.empty() ? at::Tensor() : float_tensor(dentropy, device),
            .ddivergence_R = ddivergence.empty() ? at::Tensor() : float_tensor(ddivergence, device),
            .is_zero = all_zero(dlogprobs) && all_zero(dentropy) && all_zero(ddivergence),
            .sums = std::move(sums)};
  }
};

// `takes_known` tells whether samples that bring the log-probs of these weights are differentiated at those.
LossGradients differentiate(const StepLoss& loss, const Targets& targets, const HostScores& scores,
                            bool takes_known = false) {
  const auto num_targets = static_cast<size_t>(targets.offsets.back());
  const bool has_entropy_term = loss.config.entropy_coef != 0.0;
  LossGradients gradients{.dlogprobs = std::vector<double>(num_targets),
                          .dentropy = std::vector<double>(has_entropy_term ? num_targets : 0),
                          .ddivergence = std::vector<double>(loss.config.opd.has_loss() ? num_targets : 0),
                          .sums = std::vector<rl::LossSums>(targets.samples.size())};
  for (size_t s = 0; s < targets.samples.size(); ++s) {
    const rl::Sample& sample = *targets.samples[s];
    const int64_t begin = targets.offsets[s];
    if (sample.completion.empty()) continue;  // it adds 0 to every sum
    const TrainedTokens trained = trained_tokens(loss.config, sample);
    const std::vector<double> advantages = token_advantages(sample);
    rl::LossInput input = rollout_input(loss.config, sample);
    TANDEM_CHECK_EQ(input.length, targets.offsets[s + 1] - begin, "targets of sample", sample.sample_id);
    const bool is_known = takes_known && loss.ages.is_known(sample) && input.rollout_logprobs != nullptr;
    input.logprobs = is_known ? input.rollout_logprobs : scores.logprobs + begin;
    input.entropy = scores.entropy + begin;
    if (scores.divergence != nullptr) input.divergence = scores.divergence + begin;
    if (loss.config.old_logprobs == "proximal" && input.old_logprobs == nullptr) input.old_logprobs = input.logprobs;
    input.mask = trained.mask.data();
    input.num_rejected = trained.num_rejected;
    if (loss.ages.has_older) input.on_policy_begin = loss.ages.on_policy_begin(sample);
    if (!loss.choices.empty()) {
      const rl::TokenChoice& choice = loss.choices.at(&sample);
      input.covariant = choice.covariant.data();
      input.low_entropy = choice.low_entropy.data();
    }
    input.is_first_step = loss.ages.is_first_step;
    input.advantages = advantages.empty() ? nullptr : advantages.data();
    input.entropy_share = loss.entropy_share;
    rl::accumulate_loss(loss.config, input,
                        {.dlogprobs = gradients.dlogprobs.data() + begin,
                         .dentropy = has_entropy_term ? gradients.dentropy.data() + begin : nullptr,
                         .ddivergence = gradients.ddivergence.empty() ? nullptr : gradients.ddivergence.data() + begin},
                        gradients.sums[s]);
  }
  return gradients;
}

}  // namespace

TokenAges::TokenAges(const std::vector<const rl::Sample*>& samples, RolloutLogprobs logprobs,
                     std::optional<uint64_t> version)
    : version(version), is_first_step(logprobs == RolloutLogprobs::kOfTheseWeights) {
  for (const rl::Sample* sample : samples) {
    const auto older = static_cast<size_t>(on_policy_begin(*sample));
    for (size_t t = 0; t < older && !has_older; ++t) has_older = sample->is_trained(t);
  }
}

int64_t TokenAges::on_policy_begin(const rl::Sample& sample) const {
  return version ? sample.first_token_of(*version) : 0;
}

bool TokenAges::are_known(const std::vector<const rl::Sample*>& samples) const {
  return std::ranges::all_of(samples, [&](const rl::Sample* sample) { return is_known(*sample); });
}

TrainedTokens trained_tokens(const rl::LossConfig& config, const rl::Sample& sample) {
  TANDEM_CHECK_EQ(sample.loss_mask.size(), sample.completion.size(), "loss mask of sample", sample.sample_id);
  TrainedTokens trained{.mask = sample.loss_mask};
  if (sample.remove) std::ranges::fill(trained.mask, uint8_t{0});
  trained.num_rejected = rl::reject_tokens(config, rollout_input(config, sample), trained.mask);
  return trained;
}

TokenChoices choose_tokens(const rl::LossConfig& config, const std::vector<const rl::Sample*>& samples,
                           const Scores& scores, const rl::ChoiceSeed& seed) {
  std::vector<TrainedTokens> trained;
  std::vector<std::vector<double>> advantages;
  std::vector<rl::ChoiceInput> inputs;
  for (const rl::Sample* sample : samples) {
    trained.push_back(trained_tokens(config, *sample));
    advantages.push_back(token_advantages(*sample));
  }
  for (size_t s = 0; s < samples.size(); ++s) {
    const float* const logprobs = per_token(scores.logprobs[s], *samples[s], "current log-probs");
    const float* const old_logprobs = rollout_input(config, *samples[s]).old_logprobs;
    inputs.push_back({.sample_id = samples[s]->sample_id,
                      .mask = trained[s].mask,
                      .logprobs = logprobs,
                      .old_logprobs = old_logprobs != nullptr ? old_logprobs : logprobs,
                      .advantages = advantages[s].data(),
                      .entropy = per_token(scores.entropy[s], *samples[s], "entropies")});
  }
  std::vector<rl::TokenChoice> choices = rl::choose_tokens(config, inputs, seed);
  TokenChoices result;
  for (size_t s = 0; s < samples.size(); ++s) result[samples[s]] = std::move(choices[s]);
  return result;
}

int64_t num_low_entropy(const TokenChoices& choices) {
  int64_t count = 0;
  for (const auto& [sample, choice] : choices) count += rl::num_low_entropy({&choice, 1});
  return count;
}

LossTerms policy_loss(const StepLoss& loss, const PackedBatch& batch, const TokenScores& scores) {
  const at::Tensor logprobs_R = device::to_host(scores.logprobs_R), entropy_R = device::to_host(scores.entropy_R);
  at::Tensor divergence_R;
  if (scores.divergence_R.defined()) divergence_R = device::to_host(scores.divergence_R);
  const Targets targets = {batch.samples, batch.target_offsets};
  const HostScores host = {.logprobs = logprobs_R.const_data_ptr<float>(),
                           .entropy = entropy_R.const_data_ptr<float>(),
                           .divergence = divergence_R.defined() ? divergence_R.const_data_ptr<float>() : nullptr};
  LossGradients gradients = differentiate(loss, targets, host, /*takes_known=*/loss.has_dropout);
  if (loss.has_dropout) gradients.sums = differentiate(loss, targets, host).sums;
  return std::move(gradients).terms(scores.logprobs_R.device());
}

LossTerms policy_loss_of_rollout(const StepLoss& loss, const PackedBatch& batch) {
  std::vector<float> logprobs;
  for (const rl::Sample* sample : batch.samples) {
    TANDEM_CHECK_EQ(sample->rollout_logprobs.size(), sample->completion.size(), "log-probs of sample",
                    sample->sample_id);
    logprobs.insert(logprobs.end(), sample->rollout_logprobs.begin(), sample->rollout_logprobs.end());
  }
  // No gradient depends on an entropy's value.
  const std::vector<float> entropy(logprobs.size(), 0.0F);
  LossGradients gradients =
      differentiate(loss, {batch.samples, batch.target_offsets}, {logprobs.data(), entropy.data()});
  gradients.sums.clear();
  return std::move(gradients).terms(batch.ids_T.device());
}

PendingLoss::PendingLoss(const PackedBatch& batch, const TokenScores& scores, const device::Ops& ops)
    : samples_(batch.samples),
      target_offsets_(batch.target_offsets),
      logprobs_R_(ops.fetch(scores.logprobs_R)),
      entropy_R_(ops.fetch(scores.entropy_R)),
      divergence_R_(scores.divergence_R.defined() ? ops.fetch(scores.divergence_R) : nullptr) {}

std::vector<rl::LossSums> PendingLoss::sums(const StepLoss& loss) const {
  return differentiate(loss, {samples_, target_offsets_},
                       {.logprobs = logprobs_R_->wait().const_data_ptr<float>(),
                        .entropy = entropy_R_->wait().const_data_ptr<float>(),
                        .divergence = divergence_R_ ? divergence_R_->wait().const_data_ptr<float>() : nullptr})
      .sums;
}

}  // namespace tandem::trainer
