#include "rl/preference_loss.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace tandem::rl {
namespace {

double logistic(double x) { return 1.0 / (1.0 + std::exp(-x)); }
// Returns -log(logistic(x)).
double softplus_of_minus(double x) { return x > 0 ? std::log1p(std::exp(-x)) : std::log1p(std::exp(x)) - x; }

// A loss of one number, and its derivative by it.
struct LossTerm {
  double loss, slope;
};

LossTerm pair_term(const PreferenceConfig& config, double margin) {
  const double beta = config.beta, smoothing = config.label_smoothing;
  if (config.loss == "ipo") {
    const double off = margin - 1.0 / (2.0 * beta);
    return {off * off, 2.0 * off};
  }
  const double x = beta * margin;
  if (std::isnan(x)) return {x, x};  // a comparison with it would give a number
  if (config.loss == "hinge") return x < 1.0 ? LossTerm{1.0 - x, -beta} : LossTerm{0.0, 0.0};
  if (config.loss == "sigmoid") return {softplus_of_minus(x), -beta * logistic(-x)};
  const double scale = 1.0 / (1.0 - 2.0 * smoothing);
  return {scale * ((1.0 - smoothing) * softplus_of_minus(x) - smoothing * softplus_of_minus(-x)),
          -scale * beta * ((1.0 - smoothing) * logistic(-x) + smoothing * logistic(x))};
}

LossTerm answer_term(const PreferenceConfig& config, const JudgedAnswer& answer, double kl) {
  const double sign = answer.is_desirable ? 1.0 : -1.0;
  const double weight = answer.is_desirable ? config.desirable_weight : config.undesirable_weight;
  const double s = logistic(config.beta * sign * (answer.log_ratio() - kl));
  return {weight * (1.0 - s), -weight * config.beta * sign * s * (1.0 - s)};
}

}  // namespace

PreferenceTerms preference_terms(const PreferenceConfig& config, std::span<const JudgedAnswer> answers, double kl) {
  PreferenceTerms terms{.gradients = std::vector<double>(answers.size())};
  const auto step = static_cast<size_t>(config.answers_of_item());
  TANDEM_CHECK(answers.size() % step == 0, "answers of pairs:", answers.size());
  const double share = answers.empty() ? 0.0 : static_cast<double>(step) / static_cast<double>(answers.size());
  for (size_t i = 0; i < answers.size(); i += step) {
    if (step == 1) {
      const LossTerm term = answer_term(config, answers[i], kl);
      terms.loss += share * term.loss;
      terms.gradients[i] = share * term.slope;
      continue;
    }
    const JudgedAnswer &chosen = answers[i], &rejected = answers[i + 1];
    TANDEM_CHECK(chosen.is_desirable && !rejected.is_desirable, "answers", i, "and the next are no pair");
    const bool takes_means = config.loss == "ipo";
    const double of_chosen = takes_means ? 1.0 / static_cast<double>(chosen.num_tokens) : 1.0;
    const double of_rejected = takes_means ? 1.0 / static_cast<double>(rejected.num_tokens) : 1.0;
    const LossTerm term = pair_term(config, of_chosen * chosen.log_ratio() - of_rejected * rejected.log_ratio());
    terms.loss += share * term.loss;
    terms.gradients[i] = share * term.slope * of_chosen;
    terms.gradients[i + 1] = -share * term.slope * of_rejected;
  }
  return terms;
}

}  // namespace tandem::rl
