// The losses of preferences: what a model learns from answers that somebody has judged, by their log-probs under the
// policy and under the reference, the weights that the run began with. They need each answer's log-probs in one sum,
// and their gradient by that sum is a number: so the policy is scored first, and the trainer then takes a step whose
// samples have that number as their advantage.
//
// With r = log-prob under the policy - log-prob under the reference, summed over the answer's trained tokens:
//   sigmoid  -log s(b m)
//   robust   (-(1 - e) log s(b m) + e log s(-b m)) / (1 - 2 e)
//   hinge    max(0, 1 - b m)
//   ipo      (r_chosen / T_chosen - r_rejected / T_rejected - 1 / (2 b))^2
//   kto      w (1 - s(b (r - z))) of a desirable answer, w (1 - s(b (z - r))) of another
// m is r_chosen - r_rejected, s the logistic function, b beta, e label_smoothing, T the number of trained tokens. The
// names and defaults are those of TRL, whose mean over tokens in "ipo" is the one here.
//
// sigmoid is DPO (Rafailov et al. 2023), robust Chowdhury et al. 2024, hinge SLiC (Zhao et al. 2023), ipo Azar et al.
// 2023, kto Ethayarajh et al. 2024.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::rl {

inline constexpr std::string_view kPreferenceLosses[] = {"none", "sigmoid", "robust", "hinge", "ipo", "kto"};

struct PreferenceConfig {
  std::string loss = "none";      // one of kPreferenceLosses; "none": there are no preferences
  double beta = 0.1;              // > 0
  double label_smoothing = 0.0;   // in [0, 0.5), the share of pairs that may be the wrong way round; robust alone
  double desirable_weight = 1.0;  // >= 0; kto alone
  double undesirable_weight = 1.0;

  bool is_on() const { return loss != "none"; }
  // Returns whether answers come in pairs, a chosen and a rejected one; otherwise each is judged by itself.
  bool takes_pairs() const { return is_on() && loss != "kto"; }
  int64_t answers_of_item() const { return takes_pairs() ? 2 : 1; }
};

struct JudgedAnswer {
  double logp = 0.0, ref_logp = 0.0;  // summed over its trained tokens
  int64_t num_tokens = 1;             // trained ones
  bool is_desirable = true;           // chosen, of a pair

  double log_ratio() const { return logp - ref_logp; }
};

struct PreferenceTerms {
  double loss = 0.0;              // mean over pairs, or over answers
  std::vector<double> gradients;  // of the loss by each answer's logp
};

// Pairs are adjacent answers, the chosen one first. `kl` is z of "kto", at least 0: the mean log ratio of answers under
// prompts that they do not belong to. Throws BugError where a pair is none.
PreferenceTerms preference_terms(const PreferenceConfig& config, std::span<const JudgedAnswer> answers,
                                 double kl = 0.0);

}  // namespace tandem::rl
