// Losses: rows of a table, computed in double on the host from log-probs. A row maps one sample's log-probs to
// per-token terms and their analytic gradients d loss / d logp and d loss / d entropy. docs/LOSSES.md names for each
// row the formula's source and the golden cases it reproduces. Torch-free.
//
//   loss = agg(policy term) + kl_loss_coef agg(kl) + opd.loss_coef agg(divergence from the teacher)
//          - entropy_coef mean over tokens(entropy)
//
// Normalisation: accumulate_loss() works on one sample and does not depend on the others. Its sums are multiplied once,
// after the last sample of the optimizer step, by LossNormaliser::loss_scale(): so any split into micro-batches gives
// the same gradient.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "rl/loss_config.h"

namespace tandem::rl {

// Holds the inputs of the loss for one sample. All arrays have `length` entries, and logarithms are natural.
struct LossInput {
  int64_t length = 0;
  const float* logprobs = nullptr;          // current policy
  const float* old_logprobs = nullptr;      // old policy, of which no gradient is taken; unused by sft_loss
  const float* rollout_logprobs = nullptr;  // engine's, for train_rollout_logprob_abs_diff; null: no such metric
  // Log-probs of the sampling distribution, for TIS, the veto and the behavior KL; null: rollout_logprobs.
  const float* behavior_logprobs = nullptr;
  const float* ref_logprobs = nullptr;      // reference; needed when kl_loss_coef is not 0, otherwise only metrics
  const float* teacher_logprobs = nullptr;  // of the sampled tokens, for opd_reverse_kl; null: no such metric
  // Divergence of each token's distribution from the teacher's, for the sums of opd.loss_coef. Null where it is not
  // known yet: the gradient by it is a constant.
  const float* divergence = nullptr;
  const float* entropy = nullptr;      // may be null when entropy_coef is 0: then there is no entropy metric
  const uint8_t* mask = nullptr;       // 1 where the loss counts
  const double* advantages = nullptr;  // per token; unused by sft_loss
  // 1 for the tokens that choose_tokens() chose by their covariance, needed by clip_cov and kl_cov; and for those of
  // low entropy, needed where top_entropy_quantile is below 1 (token_choice.h).
  const uint8_t* covariant = nullptr;
  const uint8_t* low_entropy = nullptr;
  const float* weights = nullptr;  // constant factor of each token's policy term; null: 1
  // A token's entropy has this weight before loss_scale(): LossNormaliser::entropy_share() of the whole optimizer step.
  double entropy_share = 1.0;
  int64_t num_rejected = 0;  // tokens that reject_tokens() removed from `mask`
  // Tokens from here on were sampled with the weights that are trained, those before with older ones. Unset where
  // nothing in the optimizer step is known to be older; there is then no metric of it.
  std::optional<int64_t> on_policy_begin = std::nullopt;
  // Nobody sampled the tokens: of the loss they have the distillation term alone, and no metric compares log-probs.
  bool is_given = false;
  bool is_first_step = false;  // the weights that are trained have not changed yet, for on_policy_logprob_abs_diff
};

// Receives the unnormalised gradient: `length` entries, overwritten, 0 outside the mask.
struct LossGradient {
  double* dlogprobs = nullptr;
  double* dentropy = nullptr;     // may be null when entropy_coef is 0
  double* ddivergence = nullptr;  // may be null when opd.has_loss() is false
};

// These are unnormalised sums over samples, by metric name without prefix (vime's names): "loss", "pg_loss",
// "pg_clipfrac", "ppo_kl", "entropy_loss", "kl_loss", "entropy", "kl", "train_rollout_logprob_abs_diff", "ois", "tis",
// "tis_abs", "tis_clipfrac", "tis_rejected_frac", "tis_veto_frac", "opsm_clipfrac", "off_policy_mask_frac",
// "clip_cov_frac", "kl_cov_frac", "low_entropy_frac", "behavior_kl", "opd_loss", "opd_reverse_kl",
// "on_policy_token_share", "on_policy_logprob_abs_diff". LossNormaliser::metrics() turns them into values.
using LossSums = std::map<std::string, double>;

// Removes from `mask` [input.length] the tokens that use_tis with tis_mode "reject" rejects: those whose weight, or
// whose sample's with the other levels, is beyond its bounds. A sample that tis_veto takes out of the loss keeps all of
// them: the veto looks at every token, and the sample stays in the denominators. It needs no current log-probs, so the
// counts of a step are known before its first forward. Returns the number of removed tokens; 0 if nothing is rejected.
// `input.mask` is not read.
int64_t reject_tokens(const LossConfig& config, const LossInput& input, std::span<uint8_t> mask);

// Adds one sample to `sums` and writes its gradient. Throws BugError when an array that the configuration needs is
// null.
void accumulate_loss(const LossConfig& config, const LossInput& input, LossGradient gradient, LossSums& sums);

// Selects how per-token terms of a step become one number. T_i is the number of trained tokens of sample i, G that of
// samples.
enum class Aggregation : uint8_t {
  kSampleMean,     // "seq-mean-token-mean": 1/G sum_i (1/T_i sum_t), vime's reducer R
  kTokenMean,      // "token-mean": sum / sum_i T_i
  kTokenSum,       // "token-sum"
  kSampleSum,      // "seq-mean-token-sum": 1/G sum
  kSampleSumNorm,  // "seq-mean-token-sum-norm": 1/(G loss_norm_tokens) sum
};
Aggregation loss_aggregation(const LossConfig& config);

// Counts the samples and tokens of one whole optimizer step and scales its sums with them. add() every sample (of all
// ranks) before asking for a scale; the counts are known before the first micro-batch runs.
class LossNormaliser {
 public:
  explicit LossNormaliser(const LossConfig& config);

  // Adds one sample's loss mask and the number of tokens that were rejected from it. Metrics of the policy term are
  // means over the samples that are not given.
  void add(std::span<const uint8_t> mask, int64_t num_rejected = 0, bool is_given = false);

  int64_t num_samples() const { return num_samples_; }                  // G in the loss's formula
  int64_t num_tokens() const { return num_tokens_; }                    // trained tokens
  int64_t num_trained_samples() const { return num_trained_samples_; }  // samples with a token in their mask
  // Returns the factor that makes accumulated gradients and the sums of "loss", "pg_loss", "kl_loss", "behavior_kl",
  // "opd_loss" and "entropy_loss" final. It is 0 when there is nothing to train on.
  double loss_scale() const;
  // Returns a factor that times loss_scale() is 1 / (num_tokens() - num_low_entropy), since the loss's entropy term is
  // a mean over tokens in every aggregation. `num_low_entropy` of the step's tokens have no part in it
  // (top_entropy_quantile).
  double entropy_share(int64_t num_low_entropy = 0) const;
  // Returns a factor that times loss_scale() is 1 / num_trained_samples(), for a term that is a mean over samples in
  // every aggregation; 0 where there are none.
  double sample_share() const;
  // Returns the values of all sums: the six above are multiplied by loss_scale(), "entropy" and "kl" are means over
  // all trained tokens, "clip_cov_frac", "kl_cov_frac", "low_entropy_frac" and "on_policy_token_share" are shares of
  // those, "tis_rejected_frac" of those and the rejected ones, "on_policy_logprob_abs_diff" is a mean over the
  // on-policy tokens. The other diagnostics are means over samples of their token means, or over tokens if the loss is
  // a token mean.
  std::map<std::string, double> metrics(const LossSums& sums) const;

 private:
  double metric_scale() const;
  double scale_of(std::string_view metric, const LossSums& sums) const;

  Aggregation aggregation_;
  bool count_removed_samples_;
  double norm_tokens_;
  int64_t num_samples_ = 0;
  int64_t num_tokens_ = 0;
  int64_t num_trained_samples_ = 0;
  int64_t num_rejected_ = 0;
  int64_t num_given_tokens_ = 0;
  int64_t num_counted_tokens_ = 0;  // a removed sample may count as one
  // Metrics of the policy term are means over these: over sampled completions alone.
  int64_t num_measured_samples_ = 0, num_measured_tokens_ = 0;
};

// ---- The tables ----

// Selects the log ratio that a surrogate is given: the token's own, or the mean or sum over the sample's trained
// tokens. kClippedMean is the mean of log ratios that were clipped one by one, each from above by eps_clip_high where
// its advantage is positive, from below by eps_clip where it is negative.
enum class RatioLevel : uint8_t { kToken, kSequenceMean, kSequenceSum, kClippedMean };

// Selects what the constant weights of a sample's tokens (use_tis, LossInput::weights) multiply: each token's term,
// with its own weight or with the geometric mean of the sample's; or the sample's ratio, with their product. A weight
// of 0 takes its token's term out in each case, and has no part in the mean and the product. Tokens that are dropped by
// their entropy or covariance keep their part in both.
enum class WeightLevel : uint8_t { kToken, kSequenceMean, kRatio };

// Selects what becomes of the tokens that a surrogate chooses by their covariance among all of a step: kDropped have no
// policy term, kPenalised have kl_cov_coef |log ratio| added to theirs.
enum class CovarianceChoice : uint8_t { kNone, kDropped, kPenalised };

// Holds a token's term and its derivatives: one by the log ratio (which may be the sample's), one by the token's
// log-prob directly.
struct SurrogateTerm {
  double value = 0.0;
  double dlog_ratio = 0.0;
  double dlogprob = 0.0;
  bool clipped = false;
};
using SurrogateFunction = SurrogateTerm (*)(const LossConfig& config, double logprob, double log_ratio,
                                            double advantage);

struct Surrogate {
  std::string_view name;
  SurrogateFunction term;
  RatioLevel ratio_level;
  WeightLevel weight_level = WeightLevel::kToken;
  CovarianceChoice choice = CovarianceChoice::kNone;
};

// Selects how an estimator computes advantages from rewards (advantages.h).
enum class AdvantageKind : uint8_t {
  kReward,              // the reward itself
  kGroupNormalised,     // minus the group's mean, divided by its standard deviation
  kGroupMean,           // minus the group's mean
  kLeaveOneOut,         // minus the mean of the group's other rewards
  kDiscountedWhitened,  // the return of each token, then whitened over the rollout
  kGroupMeanWhitened,   // minus the group's mean, then whitened
  kRewardWhitened,      // the reward itself, then whitened
};

// Describes an advantage estimator, with its defaults where no other field of LossConfig sets them.
struct Estimator {
  std::string_view name;
  AdvantageKind advantage;
  std::string_view surrogate;
  Aggregation aggregation;
  bool needs_group;  // gives a group of one no signal
};

std::span<const Surrogate> surrogates();
std::span<const Estimator> estimators();
std::span<const std::string_view> aggregation_names();  // in the order of Aggregation
std::span<const std::string_view> kl_loss_types();
// These return the rows of a configuration. They throw BugError if no row has the name: the options refuse it before.
const Estimator& find_estimator(const LossConfig& config);
const Surrogate& find_surrogate(const LossConfig& config);

}  // namespace tandem::rl
