#include "rl/reward_shaping.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "rl/metrics.h"

namespace tandem::rl {
namespace {

bool is_truncated(const Sample& sample) { return sample.status == SampleStatus::kTruncated; }

// Returns DAPO's soft overlong punishment (arXiv 2503.14476, equation 13; verl's DAPORewardManager): 0 up to the
// buffer, then linear, and the whole factor at the longest completion.
double overlong_penalty(const LossConfig& config, const Sample& sample) {
  if (config.overlong_buffer_tokens == 0) return 0.0;
  const auto length = static_cast<int64_t>(sample.completion.size());
  const int64_t exceeding = length - (config.max_response_tokens - config.overlong_buffer_tokens);
  const double share = static_cast<double>(exceeding) / static_cast<double>(config.overlong_buffer_tokens);
  return std::max(share * config.overlong_penalty_factor, 0.0);
}

double kl_penalty(const LossConfig& config, const Sample& sample) {
  if (config.kl_coef == 0.0) return 0.0;
  double kl = 0.0;
  for (size_t t = 0; t < sample.completion.size(); ++t) {
    if (sample.is_trained(t)) kl += reference_kl(sample, t);
  }
  TANDEM_ENV_CHECK(std::isfinite(kl), "sample", sample.sample_id,
                   "has a log-prob that is not finite under the reference, so --kl-coef can make no reward of it: look "
                   "at the weights of --ref-load (--hf-checkpoint, where it is unset)");
  return config.kl_coef * kl;
}

}  // namespace

double reference_kl(const Sample& sample, size_t token) {
  TANDEM_CHECK_EQ(sample.ref_logprobs.size(), sample.completion.size(), "reference log-probs of sample",
                  sample.sample_id);
  return double{sample.rollout_logprobs[token]} - double{sample.ref_logprobs[token]};
}

void mask_older_tokens(const LossConfig& config, uint64_t version, std::span<Sample> samples) {
  if (!config.mask_off_policy) return;
  for (Sample& sample : samples) {
    if (sample.is_given) continue;
    TANDEM_CHECK_EQ(sample.loss_mask.size(), sample.completion.size(), "loss mask of sample", sample.sample_id);
    std::fill_n(sample.loss_mask.begin(), sample.first_token_of(version), uint8_t{0});
  }
}

void remove_truncated(const LossConfig& config, std::span<Sample> samples) {
  if (!config.mask_truncated_completions) return;
  for (Sample& sample : samples) sample.remove = sample.remove || is_truncated(sample);
}

void set_penalties(const LossConfig& config, std::span<Sample> samples) {
  for (Sample& sample : samples) {
    sample.overlong_penalty = sample.has_reward ? overlong_penalty(config, sample) : 0.0;
    sample.kl_penalty = sample.has_reward ? kl_penalty(config, sample) : 0.0;
  }
}

std::map<std::string, double> shaping_metrics(const LossConfig& config, std::span<const Sample* const> samples,
                                              bool per_token) {
  std::map<std::string, double> metrics;
  double num_rewarded = 0.0;
  for (const Sample* sample : samples) num_rewarded += sample->has_reward ? 1.0 : 0.0;
  const auto mean = [&](auto value) {
    double sum = 0.0;
    for (const Sample* sample : samples) sum += sample->has_reward ? value(*sample) : 0.0;
    return sum / num_rewarded;
  };
  if (config.mask_truncated_completions) {
    metrics["truncated_masked"] =
        static_cast<double>(std::ranges::count_if(samples, [](const Sample* sample) { return is_truncated(*sample); }));
  }
  if (config.kl_coef > 0.0) {
    Reducer kl(per_token, config.count_removed_samples);
    for (const Sample* sample : samples) {
      if (sample->is_given) continue;
      std::vector<double> values;
      for (size_t t = 0; t < sample->completion.size(); ++t) values.push_back(reference_kl(*sample, t));
      kl.add(trained_mask(*sample), values);
    }
    metrics["kl"] = kl.value();
  }
  if (num_rewarded == 0.0) return metrics;
  if (config.kl_coef > 0.0) metrics["kl_penalty/mean"] = mean([](const Sample& sample) { return sample.kl_penalty; });
  if (config.overlong_buffer_tokens > 0) {
    metrics["overlong_penalty/mean"] = mean([](const Sample& sample) { return sample.overlong_penalty; });
    metrics["overlong_ratio"] = mean([](const Sample& sample) { return sample.overlong_penalty > 0.0 ? 1.0 : 0.0; });
  }
  if (config.kl_coef > 0.0 || config.overlong_buffer_tokens > 0) {
    metrics["shaped_reward"] = mean([](const Sample& sample) { return sample.shaped_reward(); });
  }
  return metrics;
}

}  // namespace tandem::rl
