#include "rl/token_choice.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "rl/losses.h"

namespace tandem::rl {
namespace {

// This keeps the choice's random stream apart from the samples' and the shuffles', which have other keys.
constexpr uint64_t kChoiceKey = 0x636F766172696E74;  // "covarint"

// A token of the step. Those of a step are compared by their rank, lowest first, then by their place.
struct Candidate {
  double rank = 0.0;
  size_t sample = 0, token = 0;

  bool operator<(const Candidate& other) const {
    return std::tie(rank, sample, token) < std::tie(other.rank, other.sample, other.token);
  }
};

// Calls f(sample, token) for every trained token, in order.
template <typename F>
void for_each_token(std::span<const ChoiceInput> samples, F f) {
  for (size_t s = 0; s < samples.size(); ++s) {
    for (size_t t = 0; t < samples[s].mask.size(); ++t) {
      if (samples[s].mask[t] != 0) f(s, t);
    }
  }
}

// Computes the covariances of a step's tokens.
class Covariances {
 public:
  explicit Covariances(std::span<const ChoiceInput> samples) : samples_(samples) {
    for_each_token(samples, [&](size_t s, size_t t) {
      mean_advantage_ += samples[s].advantages[t];
      mean_logprob_ += double{samples[s].logprobs[t]};
      ++num_tokens_;
    });
    if (num_tokens_ == 0) return;
    mean_advantage_ /= static_cast<double>(num_tokens_);
    mean_logprob_ /= static_cast<double>(num_tokens_);
  }

  double operator()(size_t s, size_t t) const {
    return (samples_[s].advantages[t] - mean_advantage_) * (double{samples_[s].logprobs[t]} - mean_logprob_);
  }
  // Returns how many tokens are a share of all, one at least.
  size_t num_of(double share) const {
    return static_cast<size_t>(std::max(1.0, std::floor(share * static_cast<double>(num_tokens_))));
  }

 private:
  std::span<const ChoiceInput> samples_;
  double mean_advantage_ = 0.0, mean_logprob_ = 0.0;
  int64_t num_tokens_ = 0;
};

bool is_clipped(const LossConfig& config, const ChoiceInput& sample, size_t t) {
  const double logprob = sample.logprobs[t];
  const double log_ratio =
      std::clamp(logprob - double{sample.old_logprobs[t]}, -config.max_log_ratio, config.max_log_ratio);
  return find_surrogate(config).term(config, logprob, log_ratio, sample.advantages[t]).clipped;
}

// Numbers that are not finite make a step that is skipped, and have no order: nothing is chosen by them.
std::vector<Candidate> candidates_of(const LossConfig& config, std::span<const ChoiceInput> samples,
                                     const Covariances& covariance, const ChoiceSeed& seed) {
  const bool is_random = find_surrogate(config).choice == CovarianceChoice::kDropped;
  std::vector<Candidate> candidates;
  for_each_token(samples, [&](size_t s, size_t t) {
    const double value = covariance(s, t);
    if (!std::isfinite(value)) return;
    Candidate candidate{.rank = -value, .sample = s, .token = t};
    if (is_random) {
      if (value <= config.clip_cov_lb || value >= config.clip_cov_ub || is_clipped(config, samples[s], t)) return;
      candidate.rank =
          base::uniform(seed.seed ^ kChoiceKey, samples[s].sample_id, (seed.step << 32) | static_cast<uint64_t>(t));
    }
    candidates.push_back(candidate);
  });
  return candidates;
}

void choose_by_covariance(const LossConfig& config, std::span<const ChoiceInput> samples, const ChoiceSeed& seed,
                          std::vector<TokenChoice>& choices) {
  const Covariances covariance(samples);
  std::vector<Candidate> candidates = candidates_of(config, samples, covariance, seed);
  const bool is_random = find_surrogate(config).choice == CovarianceChoice::kDropped;
  const size_t count =
      std::min(covariance.num_of(is_random ? config.clip_cov_ratio : config.kl_cov_ratio), candidates.size());
  std::ranges::nth_element(candidates, candidates.begin() + static_cast<std::ptrdiff_t>(count), std::less<>());
  for (size_t s = 0; s < samples.size(); ++s) choices[s].covariant.assign(samples[s].mask.size(), 0);
  for (size_t i = 0; i < count; ++i) choices[candidates[i].sample].covariant[candidates[i].token] = 1;
}

// A token is at or above the interpolated quantile exactly if it is at or above the value at its place rounded up.
void choose_by_entropy(const LossConfig& config, std::span<const ChoiceInput> samples,
                       std::vector<TokenChoice>& choices) {
  constexpr double kRounding = 1e-6;  // so that a place that is a whole number stays one
  std::vector<float> entropies;
  for_each_token(samples, [&](size_t s, size_t t) {
    if (std::isfinite(samples[s].entropy[t])) entropies.push_back(samples[s].entropy[t]);
  });
  for (size_t s = 0; s < samples.size(); ++s) choices[s].low_entropy.assign(samples[s].mask.size(), 0);
  if (entropies.empty()) return;
  const double place = (1.0 - config.top_entropy_quantile) * static_cast<double>(entropies.size() - 1);
  const auto least = entropies.begin() + static_cast<std::ptrdiff_t>(std::ceil(place - kRounding));
  std::ranges::nth_element(entropies, least);
  for_each_token(samples,
                 [&](size_t s, size_t t) { choices[s].low_entropy[t] = samples[s].entropy[t] < *least ? 1 : 0; });
}

}  // namespace

int64_t num_low_entropy(std::span<const TokenChoice> choices) {
  int64_t count = 0;
  for (const TokenChoice& choice : choices) count += std::ranges::count(choice.low_entropy, uint8_t{1});
  return count;
}

bool chooses_by_covariance(const LossConfig& config) {
  return config.loss_type == "policy_loss" && find_surrogate(config).choice != CovarianceChoice::kNone;
}

bool chooses_by_entropy(const LossConfig& config) {
  return config.loss_type == "policy_loss" && config.top_entropy_quantile < 1.0;
}

std::vector<TokenChoice> choose_tokens(const LossConfig& config, std::span<const ChoiceInput> samples,
                                       const ChoiceSeed& seed) {
  std::vector<TokenChoice> choices(samples.size());
  if (chooses_by_covariance(config)) choose_by_covariance(config, samples, seed, choices);
  if (chooses_by_entropy(config)) choose_by_entropy(config, samples, choices);
  return choices;
}

}  // namespace tandem::rl
