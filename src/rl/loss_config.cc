#include "rl/loss_config.h"

#include <array>
#include <cmath>
#include <span>
#include <string_view>

#include "base/check.h"
#include "rl/losses.h"

namespace tandem::rl {
namespace {

void check_name(const std::string& value, const char* flag, std::span<const std::string_view> known) {
  std::string list;
  for (const std::string_view name : known) {
    if (value == name) return;
    list += (list.empty() ? "" : ", ") + std::string(name);
  }
  throw UserError(base::join_message(flag, value, "is not known: choose one of", list));
}

void check_not_negative(double value, const char* flag) {
  TANDEM_USER_CHECK(std::isfinite(value) && value >= 0.0, flag, value, "must be a number of at least 0");
}

void check_positive(double value, const char* flag) {
  TANDEM_USER_CHECK(std::isfinite(value) && value > 0.0, flag, value, "must be a number above 0");
}

void check_names(const LossConfig& config) {
  check_name(config.loss_type, "--loss-type", std::to_array<std::string_view>({"policy_loss", "sft_loss"}));
  check_name(config.kl_loss_type, "--kl-loss-type", kl_loss_types());
  check_name(config.tis_mode, "--tis-mode", std::to_array<std::string_view>({"truncate", "mask"}));
  check_name(config.tis_level, "--tis-level", std::to_array<std::string_view>({"token", "sequence"}));
  check_name(config.reward_std_scope, "--reward-std-scope", std::to_array<std::string_view>({"group", "batch"}));
  find_estimator(config);
  find_surrogate(config);
}

void check_clips(const LossConfig& config) {
  TANDEM_USER_CHECK(config.eps_clip >= 0.0 && config.eps_clip <= 1.0, "--eps-clip", config.eps_clip,
                    "must lie between 0 and 1");
  TANDEM_USER_CHECK(std::isfinite(config.eps_clip_high), "--eps-clip-high", config.eps_clip_high, "must be a number");
  TANDEM_USER_CHECK(config.eps_clip_c == 0.0 || (std::isfinite(config.eps_clip_c) && config.eps_clip_c > 1.0),
                    "--eps-clip-c", config.eps_clip_c, "must be above 1, or 0 for no dual clip");
  check_not_negative(config.cispo_max_ratio, "--cispo-max-ratio");
  TANDEM_USER_CHECK(config.max_log_ratio > 0.0 && config.max_log_ratio <= 700.0, "--max-log-ratio",
                    config.max_log_ratio, "must be above 0 and at most 700, where exp() overflows");
  check_positive(config.sapo_tau_pos, "--sapo-tau-pos");
  check_positive(config.sapo_tau_neg, "--sapo-tau-neg");
  check_not_negative(config.dro_beta, "--dro-beta");
}

}  // namespace

void check_loss_config(const LossConfig& config) {
  check_names(config);
  check_clips(config);
  check_not_negative(config.sample_mean_epsilon, "--sample-mean-epsilon");
  check_not_negative(config.kl_loss_coef, "--kl-loss-coef");
  check_positive(config.kl_clamp, "--kl-clamp");
  TANDEM_USER_CHECK(std::isfinite(config.entropy_coef), "--entropy-coef", config.entropy_coef, "must be a number");
  check_not_negative(config.tis_clip_low, "--tis-clip-low");
  TANDEM_USER_CHECK(std::isfinite(config.tis_clip) && config.tis_clip >= config.tis_clip_low, "--tis-clip",
                    config.tis_clip, "must be a number of at least --tis-clip-low", config.tis_clip_low);
  TANDEM_USER_CHECK(std::isfinite(config.opsm_delta), "--opsm-delta", config.opsm_delta, "must be a number");
  check_not_negative(config.off_policy_mask_threshold, "--off-policy-mask-threshold");
  check_not_negative(config.group_epsilon, "--group-epsilon");
  check_not_negative(config.whiten_epsilon, "--whiten-epsilon");
  TANDEM_USER_CHECK(config.gamma >= 0.0 && config.gamma <= 1.0, "--gamma", config.gamma, "must lie between 0 and 1");
  TANDEM_USER_CHECK(
      !config.calculate_per_token_loss || config.loss_aggregation.empty() || config.loss_aggregation == "token-mean",
      "--calculate-per-token-loss and --loss-agg-mode", config.loss_aggregation,
      "contradict each other: leave one out");
  TANDEM_USER_CHECK(loss_aggregation(config) != Aggregation::kSampleSumNorm || config.loss_norm_tokens > 0.0,
                    "--loss-norm-tokens must be above 0 for --loss-agg-mode seq-mean-token-sum-norm, for example"
                    " --rollout-max-response-len");
}

}  // namespace tandem::rl
