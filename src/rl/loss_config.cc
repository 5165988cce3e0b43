#include "rl/loss_config.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "rl/losses.h"

namespace tandem::rl {
namespace {

void check_name(const std::string& value, std::span<const std::string_view> known) {
  TANDEM_CHECK(std::ranges::find(known, value) != known.end(), "no name of a loss:", value);
}

void check_not_negative(double value) { TANDEM_CHECK(std::isfinite(value) && value >= 0.0, value); }

void check_positive(double value) { TANDEM_CHECK(std::isfinite(value) && value > 0.0, value); }

void check_share(double value) { TANDEM_CHECK(value > 0.0 && value <= 1.0, value); }

void check_names(const LossConfig& config) {
  check_name(config.loss_type, kLossTypes);
  check_name(config.kl_loss_type, kl_loss_types());
  check_name(config.tis_mode, kTisModes);
  check_name(config.tis_level, kTisLevels);
  check_name(config.old_logprobs, kOldLogprobs);
  check_name(config.reward_std_scope, kRewardStdScopes);
  check_name(config.reward_aggregation, kRewardAggregations);
  find_estimator(config);
  find_surrogate(config);
}

void check_clips(const LossConfig& config) {
  TANDEM_CHECK(config.eps_clip >= 0.0 && config.eps_clip <= 1.0, config.eps_clip);
  TANDEM_CHECK(std::isfinite(config.eps_clip_high), config.eps_clip_high);
  TANDEM_CHECK(config.eps_clip_c == 0.0 || (std::isfinite(config.eps_clip_c) && config.eps_clip_c > 1.0),
               config.eps_clip_c);
  check_not_negative(config.cispo_max_ratio);
  TANDEM_CHECK(config.max_log_ratio > 0.0 && config.max_log_ratio <= kMaxLogRatio, config.max_log_ratio);
  check_positive(config.sapo_tau_pos);
  check_positive(config.sapo_tau_neg);
  check_not_negative(config.dro_beta);
  check_not_negative(config.vespo_k_pos);
  check_not_negative(config.vespo_k_neg);
  check_positive(config.vespo_lambda_pos);
  check_positive(config.vespo_lambda_neg);
  check_share(config.clip_cov_ratio);
  TANDEM_CHECK(
      std::isfinite(config.clip_cov_lb) && std::isfinite(config.clip_cov_ub) && config.clip_cov_lb < config.clip_cov_ub,
      config.clip_cov_lb, config.clip_cov_ub);
  check_share(config.kl_cov_ratio);
  check_not_negative(config.kl_cov_coef);
  check_share(config.top_entropy_quantile);
}

}  // namespace

std::map<std::string, std::string> new_definitions(const LossConfig& config) {
  std::map<std::string, std::string> result;
  if (config.entropy_coef != 0.0 && loss_aggregation(config) != Aggregation::kTokenMean)
    result["the mean of --entropy-coef"] = "over all tokens";
  if (config.entropy_coef != 0.0 && config.top_entropy_quantile < 1.0)
    result["the tokens of --entropy-coef"] = "those of --top-entropy-quantile";
  if (config.kl_loss_coef != 0.0 && config.use_unbiased_kl && config.kl_loss_type.ends_with('+'))
    result["the gradient of --use-unbiased-kl --kl-loss-type " + config.kl_loss_type] = "that of k2 times the ratio";
  if (config.mask_off_policy) result["the tokens of --mask-offpolicy-in-partial-rollout"] = "out of the loss mask";
  if (config.tis_veto > 0.0 && config.use_tis && config.tis_mode == "reject")
    result["the tokens that --tis-veto looks at"] = "those from before --tis-mode reject";
  if (config.top_entropy_quantile < 1.0 && config.use_tis && find_surrogate(config).weight_level != WeightLevel::kToken)
    result["the weight of a sample under --top-entropy-quantile"] = "that of all its tokens";
  return result;
}

std::optional<std::string> why_not_off_policy(const LossConfig& config) {
  if (config.mask_off_policy || config.off_policy_mask_threshold > 0.0) return std::nullopt;
  if (config.old_logprobs == "proximal") {
    // The ratio is 1 in the first optimizer step, whatever sampled the tokens: no clip sees how old they are.
    if (config.use_tis) return std::nullopt;
    return "--old-logprobs proximal: without --use-tis nothing corrects for samples of older weights; give --use-tis "
           "too, or leave out --old-logprobs proximal";
  }
  const std::string_view surrogate = find_surrogate(config).name;
  const bool is_free =
      surrogate == "reinforce" || surrogate == "kl_cov" || (surrogate == "dro" && config.dro_beta == 0.0);
  if (!is_free || config.use_opsm) return std::nullopt;
  return "--pg-loss-type " + std::string(surrogate) +
         ": has no trust region, so samples of older weights would move the policy without a bound; give "
         "--old-logprobs proximal --use-tis, --use-opsm, or another --pg-loss-type such as ppo";
}

void check_loss_config(const LossConfig& config) {
  check_names(config);
  const Surrogate& surrogate = find_surrogate(config);
  TANDEM_CHECK(!config.use_tis || config.tis_level != "sequence" || surrogate.weight_level != WeightLevel::kRatio,
               "the product of a sample's weights needs one for each token:", config.tis_level);
  TANDEM_CHECK(config.top_entropy_quantile == 1.0 || surrogate.choice == CovarianceChoice::kNone,
               "tokens are chosen by entropy and by covariance:", surrogate.name);
  check_clips(config);
  check_not_negative(config.sample_mean_epsilon);
  check_not_negative(config.kl_loss_coef);
  check_positive(config.kl_clamp);
  TANDEM_CHECK(std::isfinite(config.entropy_coef), config.entropy_coef);
  check_not_negative(config.tis_clip_low);
  TANDEM_CHECK(std::isfinite(config.tis_clip) && config.tis_clip >= config.tis_clip_low, config.tis_clip);
  TANDEM_CHECK(config.tis_veto >= 0.0 && config.tis_veto < 1.0, config.tis_veto);
  TANDEM_CHECK(std::isfinite(config.opsm_delta), config.opsm_delta);
  check_not_negative(config.off_policy_mask_threshold);
  check_not_negative(config.behavior_kl_coef);
  check_not_negative(config.opd.kl_coef);
  check_not_negative(config.opd.loss_coef);
  TANDEM_CHECK(config.opd.beta >= 0.0 && config.opd.beta <= 1.0, config.opd.beta);
  TANDEM_CHECK(config.opd.top_k >= 0, config.opd.top_k);
  check_not_negative(config.group_epsilon);
  check_not_negative(config.whiten_epsilon);
  TANDEM_CHECK(config.gamma >= 0.0 && config.gamma <= 1.0, config.gamma);
  TANDEM_CHECK(config.kl_coef >= 0.0 && config.kl_coef <= kMaxPenalty, config.kl_coef);
  TANDEM_CHECK(config.overlong_penalty_factor > 0.0 && config.overlong_penalty_factor <= kMaxPenalty,
               config.overlong_penalty_factor);
  TANDEM_CHECK(config.overlong_buffer_tokens >= 0, config.overlong_buffer_tokens);
  TANDEM_CHECK(config.overlong_buffer_tokens <= config.max_response_tokens,
               "no completion is as long as the buffer:", config.overlong_buffer_tokens, config.max_response_tokens);
  TANDEM_CHECK(
      !config.calculate_per_token_loss || config.loss_aggregation.empty() || config.loss_aggregation == "token-mean",
      "two aggregations:", config.loss_aggregation);
  TANDEM_CHECK(loss_aggregation(config) != Aggregation::kSampleSumNorm || config.loss_norm_tokens > 0.0,
               "a divisor is missing:", config.loss_norm_tokens);
}

}  // namespace tandem::rl
