#include "rl/losses.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "base/check.h"
#include "rl/token_choice.h"

namespace tandem::rl {
namespace {

constexpr std::string_view kAggregationNames[] = {"seq-mean-token-mean", "token-mean", "token-sum",
                                                  "seq-mean-token-sum", "seq-mean-token-sum-norm"};

constexpr std::string_view kKlLossTypes[] = {"k1",  "k2",  "k3",  "low_var_kl",  "abs",
                                             "k1+", "k2+", "k3+", "low_var_kl+", "abs+"};

// Holds a value and its derivative by the token's log-prob.
struct Term {
  double value = 0.0;
  double dlogprob = 0.0;
};

// Computes the KL estimators of http://joschu.net/blog/kl-approx.html for d = logp - ref, before any ratio or clamp.
Term kl_estimate(std::string_view kind, double d) {
  if (kind == "k1") return {d, 1.0};
  if (kind == "k2") return {0.5 * d * d, d};
  if (kind == "abs") return {std::abs(d), d > 0 ? 1.0 : (d < 0 ? -1.0 : 0.0)};
  const double inverse = std::exp(std::min(-d, 700.0));  // finite even where a token left the reference's support
  return {inverse - 1.0 + d, 1.0 - inverse};
}

// `log_ratio` is logp - old, for the unbiased estimate; a bounded one is a constant, of which there is no gradient.
Term kl_term(const LossConfig& config, double d, double log_ratio, bool is_bounded) {
  std::string_view kind = config.kl_loss_type;
  const bool straight_through = kind.ends_with('+');
  if (straight_through) kind.remove_suffix(1);
  Term kl = kl_estimate(kind, d);
  if (config.use_unbiased_kl) {
    const double ratio = std::exp(log_ratio);
    const double by_ratio = is_bounded ? 0.0 : kl.value;
    kl = {ratio * kl.value, ratio * (straight_through ? d : by_ratio + kl.dlogprob)};
  } else if (straight_through) {
    kl.dlogprob = d;
  }
  if (kind == "low_var_kl" && std::abs(kl.value) > config.kl_clamp) {
    kl = {std::copysign(config.kl_clamp, kl.value), straight_through ? kl.dlogprob : 0.0};
  }
  return kl;
}

double clamped(const LossConfig& config, double log_ratio) {
  return std::clamp(log_ratio, -config.max_log_ratio, config.max_log_ratio);
}

// Returns the log-probs that tokens were sampled with; null if there are none.
const float* sampled_logprobs(const LossInput& input) {
  return input.behavior_logprobs != nullptr ? input.behavior_logprobs : input.rollout_logprobs;
}

// Returns the weight of use_tis before its bounds, for each token where `mask` is not 0: exp(old - sampled), or the
// product or the geometric mean of these over the sample, by tis_level.
std::vector<double> importance_weights(const LossConfig& config, const LossInput& input, const uint8_t* mask) {
  const float* sampled = sampled_logprobs(input);
  std::vector<double> gaps(static_cast<size_t>(input.length), 0.0);
  double sum = 0.0, num_tokens = 0.0;
  for (int64_t t = 0; t < input.length; ++t) {
    if (mask[t] == 0) continue;
    gaps[static_cast<size_t>(t)] = double{input.old_logprobs[t]} - double{sampled[t]};
    sum += gaps[static_cast<size_t>(t)];
    num_tokens += 1.0;
  }
  const bool whole = config.tis_level != "token";
  if (config.tis_level == "geometric" && num_tokens > 0.0) sum /= num_tokens;
  std::vector<double> weights(gaps.size(), 1.0);
  for (size_t t = 0; t < gaps.size(); ++t) {
    if (mask[t] != 0) weights[t] = std::exp(clamped(config, whole ? sum : gaps[t]));
  }
  return weights;
}

// Returns whether tis_veto takes the sample out of the loss. Only tokens where `mask` is not 0 count.
bool is_vetoed(const LossConfig& config, const LossInput& input, const uint8_t* mask) {
  if (config.tis_veto == 0.0) return false;
  const float* sampled = sampled_logprobs(input);
  const double least = std::log(config.tis_veto);
  for (int64_t t = 0; t < input.length; ++t) {
    if (mask[t] != 0 && double{input.old_logprobs[t]} - double{sampled[t]} < least) return true;
  }
  return false;
}

// Computes one sample's loss: its part of the sums and the gradient.
class SampleLoss {
 public:
  SampleLoss(const LossConfig& config, const LossInput& input, LossGradient gradient, LossSums& sums)
      : config_(config), input_(input), gradient_(gradient), sums_(sums) {
    for (int64_t t = 0; t < input.length; ++t) num_tokens_ += input.mask[t] != 0;
    const Aggregation aggregation = loss_aggregation(config);
    const double token_share = num_tokens_ > 0 ? 1.0 / static_cast<double>(num_tokens_) : 0.0;
    const auto count = static_cast<double>(num_tokens_);
    const double sample_share = num_tokens_ > 0 ? 1.0 / (count + config.sample_mean_epsilon) : 0.0;
    loss_share_ = aggregation == Aggregation::kSampleMean ? sample_share : 1.0;
    metric_share_ = aggregation == Aggregation::kTokenMean ? 1.0 : token_share;
  }

  void run() {
    std::fill_n(gradient_.dlogprobs, input_.length, 0.0);
    if (gradient_.dentropy != nullptr) std::fill_n(gradient_.dentropy, input_.length, 0.0);
    if (gradient_.ddivergence != nullptr) std::fill_n(gradient_.ddivergence, input_.length, 0.0);
    if (config_.loss_type == "sft_loss") {
      add_likelihood();
    } else if (input_.is_given) {
      add_part("pg_loss", 0.0, 1.0);  // a step of given samples alone has the metric too
    } else {
      is_vetoed_ = is_vetoed(config_, input_, input_.mask);
      add_policy_term();
    }
    if (!is_vetoed_) {
      if (config_.behavior_kl_coef != 0.0 && !input_.is_given) add_behavior_kl();
      if (input_.ref_logprobs != nullptr && !input_.is_given) add_kl();
      if (config_.opd.has_loss()) add_divergence();
      if (input_.entropy != nullptr) add_entropy();
    }
    if (input_.teacher_logprobs != nullptr && !input_.is_given) {
      add_metric("opd_reverse_kl",
                 [&](int64_t t) { return double{input_.logprobs[t]} - double{input_.teacher_logprobs[t]}; });
    }
    if (input_.rollout_logprobs != nullptr) add_engine_difference();
    if (input_.on_policy_begin) add_on_policy_tokens();
  }

 private:
  // Calls body(t) for every trained token and returns the sum of what it returns.
  template <typename Body>
  double sum_tokens(Body body) const {
    double sum = 0.0;
    for (int64_t t = 0; t < input_.length; ++t) {
      if (input_.mask[t] != 0) sum += body(t);
    }
    return sum;
  }
  template <typename Body>
  double mean_tokens(Body body) const {
    return num_tokens_ > 0 ? sum_tokens(body) / static_cast<double>(num_tokens_) : 0.0;
  }
  template <typename Body>
  void add_metric(const char* name, Body body) {
    sums_[name] += metric_share_ * sum_tokens(body);
  }
  // Adds a part of the objective: its sum under `name`, and times `coefficient` to the loss. A part that is only a
  // metric does not affect the loss, even if it is not finite.
  void add_part(const char* name, double sum, double coefficient) {
    sums_[name] += loss_share_ * sum;
    if (coefficient != 0.0) sums_["loss"] += coefficient * loss_share_ * sum;
  }

  double log_ratio(int64_t t) const { return double{input_.logprobs[t]} - double{input_.old_logprobs[t]}; }
  double clamped(double log_ratio) const { return rl::clamped(config_, log_ratio); }
  const float* behavior_logprobs() const { return sampled_logprobs(input_); }

  void add_likelihood() {
    const double sum = sum_tokens([&](int64_t t) {
      gradient_.dlogprobs[t] -= loss_share_;
      return -double{input_.logprobs[t]};
    });
    sums_["loss"] += loss_share_ * sum;
  }

  // Returns the log ratio that all tokens of the sample share, before any bound.
  double sequence_log_ratio(RatioLevel level) const {
    if (level == RatioLevel::kSequenceSum) return sum_tokens([&](int64_t t) { return log_ratio(t); });
    if (level == RatioLevel::kClippedMean) return mean_tokens([&](int64_t t) { return clipped_log_ratio(t); });
    return mean_tokens([&](int64_t t) { return log_ratio(t); });
  }
  // Returns the token's log ratio, clipped in the direction in which its advantage pushes it.
  double clipped_log_ratio(int64_t t) const {
    const double high = config_.eps_clip_high < 0 ? config_.eps_clip : config_.eps_clip_high;
    if (input_.advantages[t] > 0) return std::min(log_ratio(t), high);
    return input_.advantages[t] < 0 ? std::max(log_ratio(t), -config_.eps_clip) : 0.0;
  }
  // A token without an advantage has the constant 0 in the mean: it is not clipped, and has no gradient.
  bool is_clipped(int64_t t) const { return input_.advantages[t] != 0 && clipped_log_ratio(t) != log_ratio(t); }
  bool is_constant_in_mean(int64_t t) const { return input_.advantages[t] == 0 || is_clipped(t); }

  // Puts the weights where the surrogate wants them. Returns the log of what the sample's ratio is multiplied by.
  double place_weights(WeightLevel level, std::vector<double>& weights) const {
    if (level == WeightLevel::kToken) return 0.0;
    double log_sum = 0.0, count = 0.0;
    sum_tokens([&](int64_t t) {
      const double weight = weights[static_cast<size_t>(t)];
      if (weight > 0.0) log_sum += std::log(weight), count += 1.0;
      return 0.0;
    });
    const double mean = level == WeightLevel::kSequenceMean && count > 0.0 ? std::exp(log_sum / count) : 1.0;
    for (double& weight : weights) weight = weight > 0.0 ? mean : 0.0;
    return level == WeightLevel::kRatio ? log_sum : 0.0;
  }

  void add_policy_term() {
    const Surrogate& surrogate = find_surrogate(config_);
    std::vector<double> weights = token_weights();
    // The tokens that are dropped below have no term of their own, and stay in the sample's ratio, as TRL's do.
    const double log_weight = place_weights(surrogate.weight_level, weights);
    if (config_.top_entropy_quantile < 1.0) {
      drop(weights, input_.low_entropy);
      sums_["low_entropy_frac"] += count(input_.low_entropy);
    }
    if (surrogate.choice == CovarianceChoice::kDropped) {
      drop(weights, input_.covariant);
      sums_["clip_cov_frac"] += count(input_.covariant);
    }
    if (surrogate.choice == CovarianceChoice::kPenalised) sums_["kl_cov_frac"] += count(input_.covariant);
    const double shared_log_ratio = sequence_log_ratio(surrogate.ratio_level) + log_weight;
    std::vector<double> dlog_ratio(static_cast<size_t>(input_.length), 0.0);
    double num_clipped = 0.0;
    const double sum = sum_tokens([&](int64_t t) {
      const double exact = surrogate.ratio_level == RatioLevel::kToken ? log_ratio(t) : shared_log_ratio;
      const double bounded = clamped(exact);
      SurrogateTerm term = surrogate.term(config_, double{input_.logprobs[t]}, bounded, input_.advantages[t]);
      if (surrogate.choice == CovarianceChoice::kPenalised && input_.covariant[t] != 0) penalise(bounded, term);
      const double weight = weights[static_cast<size_t>(t)];
      gradient_.dlogprobs[t] += loss_share_ * weight * term.dlogprob;
      if (bounded == exact) dlog_ratio[static_cast<size_t>(t)] = loss_share_ * weight * term.dlog_ratio;
      const bool clipped = surrogate.ratio_level == RatioLevel::kClippedMean ? is_clipped(t) : term.clipped;
      num_clipped += clipped ? 1.0 : 0.0;
      return weight * term.value;
    });
    add_ratio_gradient(surrogate.ratio_level, dlog_ratio);
    add_part("pg_loss", sum, 1.0);
    sums_["pg_clipfrac"] += metric_share_ * num_clipped;
    // The metric is of single tokens, also where the surrogate sees one ratio for the sample.
    add_metric("ppo_kl", [&](int64_t t) { return -log_ratio(t); });
  }

  // Adds KL-Cov's penalty to a term.
  void penalise(double log_ratio, SurrogateTerm& term) const {
    const double sign = log_ratio > 0.0 ? 1.0 : (log_ratio < 0.0 ? -1.0 : 0.0);
    term.value += config_.kl_cov_coef * std::abs(log_ratio);
    term.dlog_ratio += config_.kl_cov_coef * sign;
  }

  // Converts d loss / d (the log ratio of token t) to d loss / d logp.
  void add_ratio_gradient(RatioLevel level, const std::vector<double>& dlog_ratio) {
    const bool own =
        level == RatioLevel::kToken || (level == RatioLevel::kSequenceMean && config_.sequence_ratio_per_token);
    double shared = 0.0;
    if (!own) {
      for (const double d : dlog_ratio) shared += d;
      if (level != RatioLevel::kSequenceSum && num_tokens_ > 0) shared /= static_cast<double>(num_tokens_);
    }
    sum_tokens([&](int64_t t) {
      const bool is_constant = level == RatioLevel::kClippedMean && is_constant_in_mean(t);
      if (!is_constant) gradient_.dlogprobs[t] += own ? dlog_ratio[static_cast<size_t>(t)] : shared;
      return 0.0;
    });
  }

  // Returns the constant factors of the policy term: given ones, truncated importance sampling, off-policy masks.
  std::vector<double> token_weights() {
    std::vector<double> weights(static_cast<size_t>(input_.length), 1.0);
    if (input_.weights != nullptr) weights.assign(input_.weights, input_.weights + input_.length);
    // When the old log-probs are the engine's and nothing was truncated, tis is 1 and tis_abs 0: they are shown when
    // asked for.
    const bool is_asked = config_.use_tis || config_.get_mismatch_metrics || !config_.use_rollout_logprobs ||
                          config_.old_logprobs == "proximal";
    if (input_.behavior_logprobs != nullptr || (is_asked && behavior_logprobs() != nullptr)) weigh_importance(weights);
    if (config_.use_opsm) mask_off_policy(weights, input_.old_logprobs, config_.opsm_delta, "opsm_clipfrac");
    if (config_.off_policy_mask_threshold > 0.0) {
      const float* sampled = behavior_logprobs() != nullptr ? behavior_logprobs() : input_.old_logprobs;
      mask_off_policy(weights, sampled, config_.off_policy_mask_threshold, "off_policy_mask_frac");
    }
    if (config_.tis_veto > 0.0) add_metric("tis_veto_frac", [&](int64_t) { return is_vetoed_ ? 1.0 : 0.0; });
    if (is_vetoed_) std::ranges::fill(weights, 0.0);
    return weights;
  }

  // Takes chosen tokens out of the policy term.
  void drop(std::vector<double>& weights, const uint8_t* chosen) const {
    for (int64_t t = 0; t < input_.length; ++t) {
      if (chosen[t] != 0) weights[static_cast<size_t>(t)] = 0.0;
    }
  }
  double count(const uint8_t* chosen) const {
    return sum_tokens([&](int64_t t) { return chosen[t] != 0 ? 1.0 : 0.0; });
  }

  void weigh_importance(std::vector<double>& weights) {
    const std::vector<double> exact = importance_weights(config_, input_, input_.mask);
    const auto importance = [&](int64_t t) { return exact[static_cast<size_t>(t)]; };
    const auto bounded = [&](double w) {
      const double inside = std::clamp(w, config_.tis_clip_low, config_.tis_clip);
      return config_.tis_mode != "truncate" && inside != w ? 0.0 : inside;
    };
    add_metric("ois", [&](int64_t t) { return std::exp(clamped(log_ratio(t))); });
    add_metric("tis", importance);
    add_metric("tis_abs", [&](int64_t t) { return std::abs(importance(t) - 1.0); });
    add_metric("tis_clipfrac", [&](int64_t t) { return bounded(importance(t)) != importance(t) ? 1.0 : 0.0; });
    if (!config_.use_tis) return;
    if (config_.tis_mode == "reject") sums_["tis_rejected_frac"] += static_cast<double>(input_.num_rejected);
    sum_tokens([&](int64_t t) { return weights[static_cast<size_t>(t)] *= bounded(importance(t)); });
  }

  // Removes negative evidence of samples that the current policy has moved away from, by the mean of `behaviour` -
  // current: their tokens with A < 0 leave the policy term. `metric` is their share.
  void mask_off_policy(std::vector<double>& weights, const float* behaviour, double threshold, const char* metric) {
    const double sequence_kl =
        mean_tokens([&](int64_t t) { return double{behaviour[t]} - double{input_.logprobs[t]}; });
    const auto dropped = [&](int64_t t) { return input_.advantages[t] < 0 && sequence_kl > threshold; };
    add_metric(metric, [&](int64_t t) { return dropped(t) ? 1.0 : 0.0; });
    for (int64_t t = 0; t < input_.length; ++t) {
      if (dropped(t)) weights[static_cast<size_t>(t)] = 0.0;
    }
  }

  // Pulls the policy back to the one that sampled.
  void add_behavior_kl() {
    const double sum = sum_tokens([&](int64_t t) {
      const double exact = double{input_.logprobs[t]} - double{behavior_logprobs()[t]};
      const double bounded = clamped(exact);
      if (bounded == exact) gradient_.dlogprobs[t] += 2.0 * config_.behavior_kl_coef * loss_share_ * bounded;
      return bounded * bounded;
    });
    add_part("behavior_kl", sum, config_.behavior_kl_coef);
  }

  void add_kl() {
    const double sum = sum_tokens([&](int64_t t) {
      const double exact = config_.use_unbiased_kl ? log_ratio(t) : 0.0;
      const double bounded = clamped(exact);
      const Term kl = kl_term(config_, double{input_.logprobs[t]} - double{input_.ref_logprobs[t]}, bounded,
                              /*is_bounded=*/bounded != exact);
      if (config_.kl_loss_coef != 0.0) gradient_.dlogprobs[t] += config_.kl_loss_coef * loss_share_ * kl.dlogprob;
      return kl.value;
    });
    add_part("kl_loss", sum, config_.kl_loss_coef);
    sums_["kl"] += sum;
  }

  void add_divergence() {
    sum_tokens([&](int64_t t) { return gradient_.ddivergence[t] = config_.opd.loss_coef * loss_share_; });
    if (input_.divergence == nullptr) return;
    add_part("opd_loss", sum_tokens([&](int64_t t) { return double{input_.divergence[t]}; }), config_.opd.loss_coef);
  }

  // The bonus is over the tokens that have a policy term by their entropy, as TRL's is; the metrics are over all.
  void add_entropy() {
    const bool has_term = config_.entropy_coef != 0.0 && !input_.is_given;
    const auto has_bonus = [&](int64_t t) {
      return has_term && (config_.top_entropy_quantile == 1.0 || input_.low_entropy[t] == 0);
    };
    double bonus = 0.0;
    const double sum = sum_tokens([&](int64_t t) {
      if (has_bonus(t)) {
        gradient_.dentropy[t] = -config_.entropy_coef * input_.entropy_share;
        bonus += double{input_.entropy[t]};
      }
      return double{input_.entropy[t]};
    });
    sums_["entropy_loss"] += loss_share_ * sum;  // vime's metric; the loss has the bonus
    sums_["entropy"] += sum;
    if (has_term) sums_["loss"] -= config_.entropy_coef * input_.entropy_share * bonus;
  }

  void add_engine_difference() {
    const bool use_current = config_.use_rollout_logprobs || input_.old_logprobs == nullptr;
    const float* compared = use_current ? input_.logprobs : input_.old_logprobs;
    add_metric("train_rollout_logprob_abs_diff",
               [&](int64_t t) { return std::abs(double{compared[t]} - double{input_.rollout_logprobs[t]}); });
  }

  void add_on_policy_tokens() {
    const auto is_on_policy = [&](int64_t t) { return t >= *input_.on_policy_begin; };
    sums_["on_policy_token_share"] += sum_tokens([&](int64_t t) { return is_on_policy(t) ? 1.0 : 0.0; });
    if (!input_.is_first_step || input_.rollout_logprobs == nullptr) return;
    sums_["on_policy_logprob_abs_diff"] += sum_tokens([&](int64_t t) {
      return is_on_policy(t) ? std::abs(double{input_.logprobs[t]} - double{input_.rollout_logprobs[t]}) : 0.0;
    });
  }

  const LossConfig& config_;
  const LossInput& input_;
  LossGradient gradient_;
  LossSums& sums_;
  bool is_vetoed_ = false;
  int64_t num_tokens_ = 0;
  double loss_share_ = 1.0;    // weight of one token's term before loss_scale()
  double metric_share_ = 1.0;  // same weight for diagnostics
};

bool is_aggregated_as_loss(std::string_view name) {
  return name == "loss" || name == "pg_loss" || name == "kl_loss" || name == "behavior_kl" || name == "opd_loss" ||
         name == "entropy_loss";
}

}  // namespace

int64_t reject_tokens(const LossConfig& config, const LossInput& input, std::span<uint8_t> mask) {
  if (!config.use_tis || config.tis_mode != "reject" || mask.empty() || input.is_given) return 0;
  TANDEM_CHECK(input.old_logprobs != nullptr && sampled_logprobs(input) != nullptr);
  if (is_vetoed(config, input, mask.data())) return 0;
  const std::vector<double> weights = importance_weights(config, input, mask.data());
  int64_t num_rejected = 0;
  for (size_t t = 0; t < mask.size(); ++t) {
    if (mask[t] == 0 || (weights[t] >= config.tis_clip_low && weights[t] <= config.tis_clip)) continue;
    mask[t] = 0;
    ++num_rejected;
  }
  return num_rejected;
}

void accumulate_loss(const LossConfig& config, const LossInput& input, LossGradient gradient, LossSums& sums) {
  TANDEM_CHECK(input.length == 0 || (input.logprobs != nullptr && input.mask != nullptr));
  TANDEM_CHECK(input.length == 0 || gradient.dlogprobs != nullptr);
  TANDEM_CHECK(input.length == 0 || config.loss_type == "sft_loss" || input.is_given ||
               (input.old_logprobs != nullptr && input.advantages != nullptr));
  TANDEM_CHECK(input.length == 0 || !chooses_by_covariance(config) || input.covariant != nullptr);
  TANDEM_CHECK(input.length == 0 || !chooses_by_entropy(config) || input.low_entropy != nullptr);
  TANDEM_CHECK(input.length == 0 || config.kl_loss_coef == 0.0 || input.ref_logprobs != nullptr);
  TANDEM_CHECK(input.ref_logprobs == nullptr || !config.use_unbiased_kl || input.is_given ||
               input.old_logprobs != nullptr);
  TANDEM_CHECK(input.length == 0 || config.entropy_coef == 0.0 ||
               (input.entropy != nullptr && gradient.dentropy != nullptr));
  TANDEM_CHECK(input.length == 0 || !config.opd.has_loss() || gradient.ddivergence != nullptr);
  const bool reads_sampled = config.use_tis || config.tis_veto > 0.0 || config.behavior_kl_coef != 0.0;
  TANDEM_CHECK(input.length == 0 || !reads_sampled || input.is_given || sampled_logprobs(input) != nullptr);
  SampleLoss(config, input, gradient, sums).run();
}

std::span<const std::string_view> aggregation_names() { return kAggregationNames; }
std::span<const std::string_view> kl_loss_types() { return kKlLossTypes; }

Aggregation loss_aggregation(const LossConfig& config) {
  if (config.calculate_per_token_loss) return Aggregation::kTokenMean;
  if (config.loss_aggregation.empty()) {
    return config.loss_type == "sft_loss" ? Aggregation::kTokenMean : find_estimator(config).aggregation;
  }
  const auto* const name = std::ranges::find(kAggregationNames, config.loss_aggregation);
  TANDEM_CHECK(name != std::end(kAggregationNames), "no aggregation is called", config.loss_aggregation);
  return static_cast<Aggregation>(name - std::begin(kAggregationNames));
}

LossNormaliser::LossNormaliser(const LossConfig& config)
    : aggregation_(loss_aggregation(config)),
      count_removed_samples_(config.count_removed_samples),
      norm_tokens_(config.loss_norm_tokens) {}

void LossNormaliser::add(std::span<const uint8_t> mask, int64_t num_rejected, bool is_given) {
  num_rejected_ += num_rejected;
  const int64_t num_tokens = std::count_if(mask.begin(), mask.end(), [](uint8_t m) { return m != 0; });
  num_tokens_ += num_tokens;
  num_given_tokens_ += is_given ? num_tokens : 0;
  num_trained_samples_ += num_tokens > 0 ? 1 : 0;
  if (num_tokens == 0 && !count_removed_samples_) return;
  num_samples_ += 1;
  num_counted_tokens_ += std::max<int64_t>(num_tokens, 1);
  if (is_given) return;
  num_measured_samples_ += 1;
  num_measured_tokens_ += std::max<int64_t>(num_tokens, 1);
}

double LossNormaliser::loss_scale() const {
  if (num_tokens_ == 0) return 0.0;
  switch (aggregation_) {
    case Aggregation::kTokenMean: return 1.0 / static_cast<double>(num_counted_tokens_);
    case Aggregation::kTokenSum: return 1.0;
    case Aggregation::kSampleMean:
    case Aggregation::kSampleSum: return 1.0 / static_cast<double>(num_samples_);
    case Aggregation::kSampleSumNorm:
      TANDEM_CHECK(norm_tokens_ > 0.0);
      return 1.0 / (static_cast<double>(num_samples_) * norm_tokens_);
  }
  return 0.0;
}

double LossNormaliser::entropy_share(int64_t num_low_entropy) const {
  const int64_t count = num_tokens_ - num_low_entropy;
  return count > 0 ? 1.0 / static_cast<double>(count) / loss_scale() : 0.0;
}

double LossNormaliser::sample_share() const {
  return num_trained_samples_ > 0 ? 1.0 / static_cast<double>(num_trained_samples_) / loss_scale() : 0.0;
}

double LossNormaliser::metric_scale() const {
  const int64_t count = aggregation_ == Aggregation::kTokenMean ? num_measured_tokens_ : num_measured_samples_;
  return count > 0 ? 1.0 / static_cast<double>(count) : 0.0;
}

double LossNormaliser::scale_of(std::string_view metric, const LossSums& sums) const {
  if (is_aggregated_as_loss(metric)) return loss_scale();
  const auto share_of = [](double count) { return count > 0.0 ? 1.0 / count : 0.0; };
  if (metric == "on_policy_logprob_abs_diff") return share_of(sums.at("on_policy_token_share"));
  const int64_t num_policy_tokens = num_tokens_ - num_given_tokens_;
  if (metric == "tis_rejected_frac") return share_of(static_cast<double>(num_policy_tokens + num_rejected_));
  if (metric == "kl") return share_of(static_cast<double>(num_policy_tokens));
  static constexpr std::string_view kTokenMeans[] = {"entropy", "clip_cov_frac", "kl_cov_frac", "low_entropy_frac",
                                                     "on_policy_token_share"};
  const bool is_token_mean = std::ranges::find(kTokenMeans, metric) != std::end(kTokenMeans);
  return is_token_mean ? share_of(static_cast<double>(num_tokens_)) : metric_scale();
}

std::map<std::string, double> LossNormaliser::metrics(const LossSums& sums) const {
  std::map<std::string, double> values;
  for (const auto& [name, sum] : sums) values[name] = sum * scale_of(name, sums);
  return values;
}

}  // namespace tandem::rl
