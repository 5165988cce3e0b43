#include "run/loss_options.h"

#include <fmt/format.h>

#include "base/check.h"

namespace tandem::run {

void LossOptions::visit(base::Options& options) {
  const char* const group = "policy loss";
  options.option(loss.advantage_estimator, "advantage-estimator", group,
                 "grpo, dr_grpo, dapo, gspo, cispo, rloo, reinforce_plus_plus, ...: a row of the loss table");
  options.option(loss.pg_loss_type, "pg-loss-type", group, "the surrogate of another row; empty: the estimator's own");
  options.option(
      loss.loss_aggregation, "loss-agg-mode", group,
      "seq-mean-token-mean, token-mean, token-sum, seq-mean-token-sum, seq-mean-token-sum-norm; empty: the row's own");
  options.option(loss.calculate_per_token_loss, "calculate-per-token-loss", group,
                 "mean over tokens, not over samples");
  options.option(loss.count_removed_samples, "count-removed-samples", group,
                 "a sample without a trained token still counts in the mean");
  options.option(loss.eps_clip, "eps-clip", group, "the ratio is clipped below at 1 - this");
  options.option(loss.eps_clip_high, "eps-clip-high", group, "and above at 1 + this; negative: as --eps-clip");
  options.option(loss.eps_clip_c, "eps-clip-c", group, "dual clip of negative advantages, above 1; 0: off");
  options.option(loss.cispo_max_ratio, "cispo-max-ratio", group,
                 "CISPO clips only above, at this ratio (TRL); 0: both sides");
  options.option(loss.sequence_ratio_per_token, "sequence-ratio-per-token", group,
                 "a sequence ratio's gradient goes through each token's own term (GSPO-token)");
  options.option(loss.max_log_ratio, "max-log-ratio", group, "log ratios are clamped to this before exp")
      .greater_than(0.0);
  options.option(loss.sapo_tau_pos, "sapo-tau-pos", group, "SAPO's temperature for positive advantages")
      .greater_than(0.0);
  options.option(loss.sapo_tau_neg, "sapo-tau-neg", group, "and for the others").greater_than(0.0);
  options.option(use_kl_loss, "use-kl-loss", group,
                 "add the KL term to the loss (no reference is read at coefficient 0)");
  options.option(loss.kl_loss_coef, "kl-loss-coef", group, "its coefficient; needs --use-kl-loss").at_least(0.0);
  options.option(loss.kl_loss_type, "kl-loss-type", group,
                 "k1, k2, k3, low_var_kl, abs; a + behind takes k2's gradient");
  options.option(loss.use_unbiased_kl, "use-unbiased-kl", group, "the KL term times the token's ratio");
  options.option(loss.kl_clamp, "kl-clamp", group, "low_var_kl is clamped to this").greater_than(0.0);
  options.option(ref_load, "ref-load", group, "Hugging Face directory of the reference; empty: --hf-checkpoint").path();
  options.option(loss.entropy_coef, "entropy-coef", group, "entropy bonus");
  options.option(loss.use_tis, "use-tis", group, "truncated importance sampling: weights exp(old - sampled)");
  options.option(loss.tis_clip, "tis-clip", group, "upper bound of those weights").greater_than(0.0);
  options.option(loss.tis_clip_low, "tis-clip-low", group, "lower bound of those weights").at_least(0.0);
  options.option(loss.tis_mode, "tis-mode", group, "truncate: clamp to the bounds; mask: 0 outside (IcePop)")
      .one_of({"truncate", "mask"});
  options.option(loss.tis_level, "tis-level", group, "one weight a token, or one a sequence")
      .one_of({"token", "sequence"});
  options
      .option(get_mismatch_metrics, "get-mismatch-metrics", group,
              "recompute the old log-probs, to show that they are the engine's")
      .changes_no_number();
  const char* const advantages = "advantages";
  options.option(loss.disable_rewards_normalization, "disable-rewards-normalization", advantages, "raw rewards");
  options.option(loss.disable_grpo_std_normalization, "disable-grpo-std-normalization", advantages,
                 "subtract the group's mean only (Dr.GRPO)");
  options
      .option(loss.group_epsilon, "group-epsilon", advantages, "added to a group's std: vime and verl 1e-6, TRL 1e-4")
      .at_least(0.0);
  options.option(loss.normalize_advantages, "normalize-advantages", advantages,
                 "whiten over all tokens of the rollout");
  options.option(loss.whiten_epsilon, "whiten-epsilon", advantages, "added to that variance").at_least(0.0);
  options.option(loss.gamma, "gamma", advantages, "discount of REINFORCE++").at_least(0.0).at_most(1.0);
}

void LossOptions::check() const {
  TANDEM_USER_CHECK(use_kl_loss || loss.kl_loss_coef == 0.0,
                    fmt::format("--kl-loss-coef {}: does nothing without --use-kl-loss; give both", loss.kl_loss_coef));
  TANDEM_USER_CHECK(
      ref_load.empty() || needs_reference(),
      "--ref-load: no reference is read while the KL coefficient is 0; give --use-kl-loss --kl-loss-coef X, "
      "or leave it out");
  rl::check_loss_config(loss);
}

}  // namespace tandem::run
