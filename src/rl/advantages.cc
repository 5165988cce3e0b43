#include "rl/advantages.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <vector>

#include "base/check.h"
#include "rl/losses.h"
#include "rl/reward_shaping.h"

namespace tandem::rl {
namespace {

double mean_of(std::span<const double> values) {
  double sum = 0.0;
  for (const double v : values) sum += v;
  const auto count = static_cast<double>(values.size());
  if (std::isfinite(sum)) return sum / count;
  sum = 0.0;  // finite numbers near 1e308 have a mean, though not a sum
  for (const double v : values) sum += v / count;
  return sum;
}

// Returns the unbiased standard deviation (n - 1), as vime, verl and TRL take it.
double standard_deviation(std::span<const double> values, double mean) {
  double sum = 0.0;
  for (const double v : values) sum += (v - mean) * (v - mean);
  const auto freedom = static_cast<double>(values.size() - 1);
  if (std::isfinite(sum)) return std::sqrt(sum / freedom);
  // Squares above 1e308 overflow, so this computes in units of the largest difference. A spread of infinity would make
  // advantages of 0.
  double largest = 0.0;
  for (const double v : values) largest = std::max(largest, std::abs(v - mean));
  if (!std::isfinite(largest)) return largest;
  sum = 0.0;
  for (const double v : values) sum += (v - mean) / largest * ((v - mean) / largest);
  return largest * std::sqrt(sum / freedom);
}

// Returns the same estimator for raw rewards: no statistic of the group is subtracted, and whitening stays.
AdvantageKind without_group(AdvantageKind kind) {
  switch (kind) {
    case AdvantageKind::kGroupNormalised:
    case AdvantageKind::kGroupMean:
    case AdvantageKind::kLeaveOneOut: return AdvantageKind::kReward;
    case AdvantageKind::kGroupMeanWhitened: return AdvantageKind::kRewardWhitened;
    case AdvantageKind::kReward:
    case AdvantageKind::kRewardWhitened:
    case AdvantageKind::kDiscountedWhitened: break;
  }
  return kind;
}

// Returns the row's kind, after --disable-rewards-normalization and --disable-grpo-std-normalization.
AdvantageKind advantage_kind(const LossConfig& config) {
  const AdvantageKind kind = find_estimator(config).advantage;
  if (config.disable_rewards_normalization) return without_group(kind);
  if (kind == AdvantageKind::kGroupNormalised && config.disable_grpo_std_normalization)
    return AdvantageKind::kGroupMean;
  return kind;
}

bool compares_group(AdvantageKind kind) { return without_group(kind) != kind; }

bool is_whitened(AdvantageKind kind) {
  return kind == AdvantageKind::kDiscountedWhitened || kind == AdvantageKind::kGroupMeanWhitened ||
         kind == AdvantageKind::kRewardWhitened;
}

bool is_trained(const Sample& sample) {
  return !sample.remove &&
         std::any_of(sample.loss_mask.begin(), sample.loss_mask.end(), [](uint8_t m) { return m != 0; });
}

// Returns whether all values are the same number; true for a single one. It compares the numbers themselves, because
// the computed mean of equal numbers may differ from them by rounding, and then their standard deviation is not 0.
bool are_equal(std::span<const double> values) {
  return std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end();
}

double& advantage_at(Sample& sample, size_t token) {
  return sample.advantages[sample.advantages.size() == 1 ? 0 : token];
}

// Assigns the return of each token, G_t = r_t + gamma G_(t+1): the reward is on the last trained token, and each
// trained token loses its KL. This is slime's get_reinforce_plus_plus_returns, or verl's, where only trained tokens
// discount.
void assign_returns(const LossConfig& config, Sample& sample, double reward) {
  if ((config.gamma == 1.0 && config.kl_coef == 0.0) || !is_trained(sample)) return;  // one number for all tokens
  sample.advantages.assign(sample.completion.size(), 0.0);
  bool reached_end = false;
  double running = reward;
  for (size_t t = sample.completion.size(); t-- > 0;) {
    const bool trained = sample.is_trained(t);
    if (reached_end && (trained || config.discount_masked_tokens)) running *= config.gamma;
    if (trained && config.kl_coef > 0.0) running -= config.kl_coef * reference_kl(sample, t);
    reached_end = reached_end || trained;
    if (reached_end) sample.advantages[t] = running;
  }
}

// Computes (x - mean) / sqrt(variance + epsilon) over all trained tokens: verl's and slime's masked whitening, with
// unbiased variance. Equal values become 0, not their rounding over sqrt(epsilon).
void whiten(const LossConfig& config, std::span<Sample> samples) {
  double sum = 0.0, lowest = std::numeric_limits<double>::infinity(), highest = -lowest;
  int64_t count = 0;
  const auto for_each_token = [&](auto body) {
    for (Sample& sample : samples) {
      if (!is_trained(sample) || sample.is_given) continue;
      for (size_t t = 0; t < sample.loss_mask.size(); ++t) {
        if (sample.loss_mask[t] != 0) body(advantage_at(sample, t));
      }
    }
  };
  for_each_token([&](double a) {
    sum += a, count += 1;
    lowest = std::min(lowest, a), highest = std::max(highest, a);
  });
  if (count < 2) return;  // no variance
  const bool is_flat = lowest == highest;
  const double mean = is_flat ? lowest : sum / static_cast<double>(count);
  double squares = 0.0;
  for_each_token([&](double a) { squares += (a - mean) * (a - mean); });
  const double spread = std::sqrt(squares / static_cast<double>(count - 1) + config.whiten_epsilon);
  const double scale = is_flat ? 0.0 : 1.0 / spread;
  for (Sample& sample : samples) {
    if (!sample.has_reward) continue;
    for (double& a : sample.advantages) a = (a - mean) * scale;
  }
}

// Turns the rewards of one group, in sample order, into advantages before any whitening. `batch_deviation` is that of
// all rewards.
std::vector<double> group_advantages(const LossConfig& config, std::span<const double> rewards,
                                     double batch_deviation) {
  const AdvantageKind kind = advantage_kind(config);
  std::vector<double> advantages(rewards.begin(), rewards.end());
  if (!compares_group(kind)) return advantages;
  if (are_equal(rewards)) return std::vector<double>(rewards.size(), 0.0);
  const double mean = mean_of(rewards);
  const double count = static_cast<double>(rewards.size());
  double scale = 1.0;
  if (kind == AdvantageKind::kLeaveOneOut) scale = count / (count - 1.0);
  if (kind == AdvantageKind::kGroupNormalised) {
    const bool whole_batch = config.reward_std_scope == "batch";
    const double spread = (whole_batch ? batch_deviation : standard_deviation(rewards, mean)) + config.group_epsilon;
    // The squares of the differences may underflow, with --group-epsilon 0: that gives no signal, not x / 0.
    scale = spread > 0.0 ? 1.0 / spread : 0.0;
  }
  for (double& a : advantages) a = (a - mean) * scale;
  return advantages;
}

// A group's samples that have a reward, by their index in the rollout.
using Groups = std::map<uint64_t, std::vector<size_t>>;

// Returns the values of reward `k` in one group, in sample order. A failed sample has the worst of them: the lowest, or
// with a negative weight the highest.
std::vector<std::optional<double>> values_in_group(const RewardParts& parts, size_t k, std::span<const Sample> samples,
                                                   const std::vector<size_t>& group) {
  std::vector<std::optional<double>> values;
  const bool is_penalty = parts.weights[k] < 0.0;
  std::optional<double> worst;
  for (const size_t i : group) {
    const std::optional<double> value = samples[i].grading_failed ? std::nullopt : parts.values[i][k];
    if (value) worst = is_penalty ? std::max(worst.value_or(*value), *value) : std::min(worst.value_or(*value), *value);
    values.push_back(value);
  }
  for (size_t j = 0; j < group.size(); ++j) {
    if (samples[group[j]].grading_failed) values[j] = worst;
  }
  return values;
}

// Adds one reward to the sums of a group, normalised over the samples to which it applies.
void add_normalised(const LossConfig& config, double weight, const std::vector<std::optional<double>>& values,
                    const std::vector<size_t>& group, std::vector<double>& sums) {
  std::vector<double> known;
  for (const std::optional<double>& value : values) {
    if (value) known.push_back(*value);
  }
  if (known.size() < 2 || are_equal(known)) return;
  const double mean = mean_of(known);
  const double spread = standard_deviation(known, mean) + config.group_epsilon;
  if (!(spread > 0.0)) return;
  for (size_t j = 0; j < group.size(); ++j) {
    if (values[j]) sums[group[j]] += weight * ((*values[j] - mean) / spread);
  }
}

// Computes TRL's advantages of multi_objective_aggregation "normalize_then_sum". TRL subtracts the mean of all sums,
// which is 0 but for rounding: without it groups of equal rewards have advantages of exactly 0.
void assign_normalised_parts(const LossConfig& config, std::span<Sample> samples, const RewardParts& parts) {
  Groups groups;
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i].advantages.assign(1, 0.0);
    if (samples[i].has_reward) groups[samples[i].group_id].push_back(i);
  }
  std::vector<double> sums(samples.size(), 0.0), counted;
  for (const auto& [id, group] : groups) {
    for (size_t k = 0; k < parts.weights.size(); ++k) {
      add_normalised(config, parts.weights[k], values_in_group(parts, k, samples, group), group, sums);
    }
    for (const size_t i : group) counted.push_back(sums[i]);
  }
  if (counted.size() < 2 || are_equal(counted)) return;
  const double spread = standard_deviation(counted, mean_of(counted)) + config.group_epsilon;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].has_reward && spread > 0.0) samples[i].advantages[0] = sums[i] / spread;
  }
}

// Returns the rewards themselves as the only part.
RewardParts single_part(std::span<const Sample> samples) {
  RewardParts parts{.weights = {1.0}, .values = {}};
  for (const Sample& sample : samples) parts.values.push_back({sample.reward});
  return parts;
}

// Compares the rewards of each group.
void assign_in_groups(const LossConfig& config, AdvantageKind kind, std::span<Sample> samples) {
  // Returns have the KL of each token in them; every other advantage is one number, and so is the KL.
  const auto reward_of = [&](const Sample& sample) {
    return kind == AdvantageKind::kDiscountedWhitened ? sample.reward - sample.overlong_penalty
                                                      : sample.shaped_reward();
  };
  std::map<uint64_t, std::vector<Sample*>> groups;
  std::vector<double> all_rewards;
  for (Sample& sample : samples) {
    sample.advantages.assign(1, 0.0);
    if (!sample.has_reward) continue;
    TANDEM_CHECK(std::isfinite(sample.shaped_reward()), "sample", sample.sample_id);
    TANDEM_CHECK_EQ(sample.loss_mask.size(), sample.completion.size());
    groups[sample.group_id].push_back(&sample);
    all_rewards.push_back(reward_of(sample));
  }
  const double batch_deviation = all_rewards.size() < 2 ? 0.0 : standard_deviation(all_rewards, mean_of(all_rewards));
  for (const auto& [id, group] : groups) {
    std::vector<double> rewards;
    for (const Sample* sample : group) rewards.push_back(reward_of(*sample));
    const std::vector<double> advantages = group_advantages(config, rewards, batch_deviation);
    for (size_t i = 0; i < group.size(); ++i) {
      group[i]->advantages.assign(1, advantages[i]);
      if (kind == AdvantageKind::kDiscountedWhitened) assign_returns(config, *group[i], advantages[i]);
    }
  }
}

}  // namespace

AdvantageParts assign_advantages(const LossConfig& config, std::span<Sample> samples, const RewardParts& rewards) {
  const AdvantageKind kind = advantage_kind(config);
  set_penalties(config, samples);
  if (config.reward_aggregation == "normalize_then_sum") {
    TANDEM_CHECK(rewards.values.empty() || rewards.values.size() == samples.size(), rewards.values.size(),
                 "samples' rewards");
    assign_normalised_parts(config, samples, rewards.values.empty() ? single_part(samples) : rewards);
  } else {
    assign_in_groups(config, kind, samples);
  }
  const AdvantageParts parts = config.opd.is_on ? add_teacher(config.opd, samples) : AdvantageParts();
  if (is_whitened(kind) || config.normalize_advantages) whiten(config, samples);
  return parts;
}

}  // namespace tandem::rl
