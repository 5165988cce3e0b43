// Defines the two tables of losses.h: the meaning of each estimator, and the policy term of each surrogate with its
// derivative. A is the advantage, r = exp(log ratio); every function below computes one token's term. docs/LOSSES.md
// gives the sources.
#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"
#include "rl/losses.h"

namespace tandem::rl {
namespace {

double clip_high(const LossConfig& config) { return config.eps_clip_high < 0 ? config.eps_clip : config.eps_clip_high; }

double clip_ratio(const LossConfig& config, double ratio) {
  return std::clamp(ratio, 1.0 - config.eps_clip, 1.0 + clip_high(config));
}

// The term is max(-r A, -clip(r) A), and for A < 0 at most -c A.
SurrogateTerm ppo_term(const LossConfig& config, double /*logprob*/, double log_ratio, double advantage) {
  const double ratio = std::exp(log_ratio);
  const double unclipped = -ratio * advantage;
  const double clipped = -clip_ratio(config, ratio) * advantage;
  SurrogateTerm term{.value = unclipped, .dlog_ratio = unclipped};
  if (clipped > unclipped) term = {.value = clipped, .clipped = true};
  if (config.eps_clip_c > 1.0 && advantage < 0 && term.value > -config.eps_clip_c * advantage) {
    // pg_clipfrac counts the ratio's band alone, as the peers do.
    term = {.value = -config.eps_clip_c * advantage, .clipped = term.clipped};
  }
  return term;
}

// The term is -stop(clip(r)) A logp: every token keeps a gradient, the clip only bounds its weight.
SurrogateTerm cispo_term(const LossConfig& config, double logprob, double log_ratio, double advantage) {
  const double ratio = std::exp(log_ratio);
  const double weight =
      config.cispo_max_ratio > 0 ? std::min(ratio, config.cispo_max_ratio) : clip_ratio(config, ratio);
  return {.value = -weight * advantage * logprob, .dlogprob = -weight * advantage, .clipped = weight != ratio};
}

SurrogateTerm reinforce_term(const LossConfig& /*config*/, double logprob, double /*log_ratio*/, double advantage) {
  return {.value = -advantage * logprob, .dlogprob = -advantage};
}

// The term is -(4 / tau) sigmoid(tau (r - 1)) A: a soft gate instead of a clip.
SurrogateTerm sapo_term(const LossConfig& config, double /*logprob*/, double log_ratio, double advantage) {
  const double tau = advantage > 0 ? config.sapo_tau_pos : config.sapo_tau_neg;
  const double ratio = std::exp(log_ratio);
  const double gate = 1.0 / (1.0 + std::exp(-tau * (ratio - 1.0)));
  return {.value = -4.0 / tau * gate * advantage, .dlog_ratio = -4.0 * gate * (1.0 - gate) * ratio * advantage};
}

// The term is -stop(min(r, c)) A logp on tokens inside the trust region, nothing outside. c is 20 unless dual clip sets
// it.
SurrogateTerm trusted_term(const LossConfig& config, double logprob, double log_ratio, double advantage, bool trusted) {
  const double max_ratio = config.eps_clip_c > 1.0 ? config.eps_clip_c : 20.0;
  if (!trusted) return {.clipped = true};
  const double weight = std::min(std::exp(log_ratio), max_ratio);
  return {.value = -weight * advantage * logprob, .dlogprob = -weight * advantage};
}

// The trust region lets the token's probability move by eps_clip down (A <= 0) or eps_clip_high up.
SurrogateTerm dppo_tv_term(const LossConfig& config, double logprob, double log_ratio, double advantage) {
  const double moved = std::exp(logprob) - std::exp(logprob - log_ratio);
  const bool trusted = advantage > 0 ? moved <= clip_high(config) : moved >= -config.eps_clip;
  return trusted_term(config, logprob, log_ratio, advantage, trusted);
}

// A token is in the trust region if the KL of "this token or another" between old and new policy stays within eps_clip,
// or the move is against the advantage.
SurrogateTerm dppo_kl_term(const LossConfig& config, double logprob, double log_ratio, double advantage) {
  constexpr double kFloor = 1e-8;  // verl's, against log(0) where a probability is 1
  const double probability = std::exp(logprob);
  const double old_probability = std::exp(logprob - log_ratio);
  const double divergence =
      -old_probability * log_ratio +
      (1.0 - old_probability) * std::log((1.0 - old_probability + kFloor) / (1.0 - probability + kFloor));
  const bool trusted = advantage > 0 ? divergence <= clip_high(config) || probability <= old_probability
                                     : divergence <= config.eps_clip || probability >= old_probability;
  return trusted_term(config, logprob, log_ratio, advantage, trusted);
}

// The term is -A logp + beta / 2 (log r)^2: the policy is pulled back to the old one instead of clipped.
SurrogateTerm dro_term(const LossConfig& config, double logprob, double log_ratio, double advantage) {
  return {.value = -advantage * logprob + 0.5 * config.dro_beta * log_ratio * log_ratio,
          .dlog_ratio = config.dro_beta * log_ratio,
          .dlogprob = -advantage};
}

// The term is -stop(phi(w)) A logp with phi(w) = w^k exp(lambda (1 - w)), where w is the product of the sample's
// ratios: VESPO (arXiv 2602.10693). phi is 1 at w = 1 and falls to 0 on both sides of its peak.
SurrogateTerm vespo_term(const LossConfig& config, double logprob, double log_ratio, double advantage) {
  constexpr double kLeastLogRatio = -18.420680743952367;  // log(1e-8), TRL's
  const double k = advantage >= 0 ? config.vespo_k_pos : config.vespo_k_neg;
  const double lambda = advantage >= 0 ? config.vespo_lambda_pos : config.vespo_lambda_neg;
  const double bounded = std::max(log_ratio, kLeastLogRatio);
  const double weight = std::exp(lambda + k * bounded - lambda * std::exp(bounded));
  return {.value = -weight * advantage * logprob, .dlogprob = -weight * advantage};
}

// The term is -r A. In GMPO (arXiv 2507.20673) r is the geometric mean of the sample's clipped ratios; KL-Cov (arXiv
// 2505.22617) holds only the tokens that it chooses near the old policy.
SurrogateTerm unclipped_term(const LossConfig& /*config*/, double /*logprob*/, double log_ratio, double advantage) {
  const double value = -std::exp(log_ratio) * advantage;
  return {.value = value, .dlog_ratio = value};
}

constexpr Surrogate kSurrogates[] = {
    {"ppo", ppo_term, RatioLevel::kToken},
    {"gspo", ppo_term, RatioLevel::kSequenceMean},
    {"rloo", ppo_term, RatioLevel::kSequenceSum},
    {"cispo", cispo_term, RatioLevel::kToken},
    {"reinforce", reinforce_term, RatioLevel::kToken},
    {"sapo", sapo_term, RatioLevel::kToken},
    {"dppo_tv", dppo_tv_term, RatioLevel::kToken},
    {"dppo_kl", dppo_kl_term, RatioLevel::kToken},
    {"dro", dro_term, RatioLevel::kToken},
    {"geo_mean", unclipped_term, RatioLevel::kClippedMean, WeightLevel::kSequenceMean},
    {"vespo", vespo_term, RatioLevel::kSequenceSum, WeightLevel::kRatio},
    {"clip_cov", ppo_term, RatioLevel::kToken, WeightLevel::kToken, CovarianceChoice::kDropped},
    {"kl_cov", unclipped_term, RatioLevel::kToken, WeightLevel::kToken, CovarianceChoice::kPenalised},
};

constexpr Estimator kEstimators[] = {
    {"grpo", AdvantageKind::kGroupNormalised, "ppo", Aggregation::kSampleMean, true},
    {"dr_grpo", AdvantageKind::kGroupMean, "ppo", Aggregation::kSampleSumNorm, true},
    {"dapo", AdvantageKind::kGroupNormalised, "ppo", Aggregation::kTokenMean, true},
    {"gspo", AdvantageKind::kGroupNormalised, "gspo", Aggregation::kSampleMean, true},
    {"cispo", AdvantageKind::kGroupNormalised, "cispo", Aggregation::kSampleMean, true},
    {"sapo", AdvantageKind::kGroupNormalised, "sapo", Aggregation::kSampleMean, true},
    {"rloo", AdvantageKind::kLeaveOneOut, "rloo", Aggregation::kSampleMean, true},
    {"reinforce", AdvantageKind::kReward, "reinforce", Aggregation::kSampleMean, false},
    {"reinforce_plus_plus", AdvantageKind::kDiscountedWhitened, "ppo", Aggregation::kSampleMean, false},
    {"reinforce_plus_plus_baseline", AdvantageKind::kGroupMeanWhitened, "ppo", Aggregation::kSampleMean, true},
};

template <typename Row>
const Row& find_row(std::span<const Row> rows, std::string_view name) {
  const auto row = std::ranges::find(rows, name, &Row::name);
  TANDEM_CHECK(row != rows.end(), "no row is called", name);
  return *row;
}

}  // namespace

std::span<const Surrogate> surrogates() { return kSurrogates; }
std::span<const Estimator> estimators() { return kEstimators; }

const Estimator& find_estimator(const LossConfig& config) { return find_row(estimators(), config.advantage_estimator); }

const Surrogate& find_surrogate(const LossConfig& config) {
  const std::string_view name =
      config.pg_loss_type.empty() ? find_estimator(config).surrogate : std::string_view(config.pg_loss_type);
  return find_row(surrogates(), name);
}

}  // namespace tandem::rl
