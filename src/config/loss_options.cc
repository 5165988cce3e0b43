#include "config/loss_options.h"

#include <fmt/format.h>

#include "base/check.h"

namespace tandem::config {

void LossOptions::visit(base::Options& options) {
  visit_policy_term(options);
  visit_other_terms(options);
  visit_corrections(options);
  visit_advantages(options);
}

void LossOptions::visit_policy_term(base::Options& options) {
  const char* const group = "policy loss";
  options.option(loss.advantage_estimator, "advantage-estimator", group,
                 "grpo, dr_grpo, dapo, gspo, cispo, rloo, reinforce_plus_plus, ...: a row of the loss table");
  options.option(loss.pg_loss_type, "pg-loss-type", group, "the surrogate of another row; empty: the estimator's own");
  options.option(
      loss.loss_aggregation, "loss-agg-mode", group,
      "seq-mean-token-mean, token-mean, token-sum, seq-mean-token-sum, seq-mean-token-sum-norm; empty: the row's own");
  options.option(loss.calculate_per_token_loss, "calculate-per-token-loss", group,
                 "mean over tokens, not over samples");
  options
      .option(loss.loss_norm_tokens, "loss-norm-tokens", group,
              "divisor of seq-mean-token-sum-norm (Dr.GRPO); 0: --rollout-max-response-len")
      .at_least(0.0);
  options
      .option(loss.sample_mean_epsilon, "sample-mean-epsilon", group,
              "added to a sample's number of tokens in its mean (verl 1e-8)")
      .at_least(0.0);
  options.option(loss.count_removed_samples, "count-removed-samples", group,
                 "a sample without a trained token still counts in the mean");
  options.option(loss.eps_clip, "eps-clip", group, "the ratio is clipped below at 1 - this");
  options.option(loss.eps_clip_high, "eps-clip-high", group,
                 "the ratio is clipped above at 1 + this; negative: as --eps-clip");
  options.option(loss.eps_clip_c, "eps-clip-c", group, "dual clip of negative advantages, above 1; 0: off");
  options.option(loss.cispo_max_ratio, "cispo-max-ratio", group,
                 "CISPO clips only above, at this ratio (TRL); 0: both sides");
  options.option(loss.sequence_ratio_per_token, "sequence-ratio-per-token", group,
                 "a sequence ratio's gradient goes through each token's own term (GSPO-token)");
  options.option(loss.max_log_ratio, "max-log-ratio", group, "log ratios are clamped to this before exp")
      .greater_than(0.0);
  options.option(loss.sapo_tau_pos, "sapo-tau-pos", group, "SAPO's temperature for positive advantages")
      .greater_than(0.0);
  options.option(loss.sapo_tau_neg, "sapo-tau-neg", group, "SAPO's temperature for advantages of 0 and below")
      .greater_than(0.0);
  options.option(loss.dro_beta, "dro-beta", group, "weight of DRO's squared log ratio").at_least(0.0);
}

void LossOptions::visit_other_terms(base::Options& options) {
  const char* const group = "policy loss";
  options.option(use_kl_loss, "use-kl-loss", group,
                 "score the reference and report the KL; --kl-loss-coef above 0 adds it to the loss");
  options.option(loss.kl_loss_coef, "kl-loss-coef", group, "coefficient of the KL term; needs --use-kl-loss")
      .at_least(0.0);
  options.option(loss.kl_loss_type, "kl-loss-type", group,
                 "k1, k2, k3, low_var_kl, abs; a + behind takes k2's gradient");
  options.option(loss.use_unbiased_kl, "use-unbiased-kl", group, "the KL term times the token's ratio");
  options.option(loss.kl_clamp, "kl-clamp", group, "low_var_kl is clamped to this").greater_than(0.0);
  options.option(ref_load, "ref-load", group, "Hugging Face directory of the reference; empty: --hf-checkpoint").path();
  options.option(loss.entropy_coef, "entropy-coef", group, "entropy bonus");
}

void LossOptions::visit_corrections(base::Options& options) {
  const char* const group = "policy loss";
  options.option(loss.use_tis, "use-tis", group, "truncated importance sampling: weights exp(old - sampled)");
  options.option(loss.tis_clip, "tis-clip", group, "upper bound of those weights").greater_than(0.0);
  options.option(loss.tis_clip_low, "tis-clip-low", group, "lower bound of those weights").at_least(0.0);
  options.option(loss.tis_mode, "tis-mode", group, "truncate: clamp to the bounds; mask: 0 outside (IcePop)")
      .one_of({"truncate", "mask"});
  options.option(loss.tis_level, "tis-level", group, "one weight a token, or one a sequence")
      .one_of({"token", "sequence"});
  options.option(loss.use_opsm, "use-opsm", group,
                 "off-policy sequence mask (slime): no term for A < 0 in samples that --opsm-delta is exceeded in");
  options.option(loss.opsm_delta, "opsm-delta", group,
                 "threshold of --use-opsm, on the mean of old - current log-probs");
  options
      .option(loss.off_policy_mask_threshold, "off-policy-mask-threshold", group,
              "TRL's off-policy mask: as --use-opsm, on the mean of sampled - current log-probs; 0: off")
      .at_least(0.0);
  options
      .option(loss.get_mismatch_metrics, "get-mismatch-metrics", group,
              "report ois, tis and tis_abs always, and recompute the old log-probs, to show that they are the engine's")
      .does_not_affect_results();
}

void LossOptions::visit_advantages(base::Options& options) {
  const char* const group = "advantages";
  options.option(loss.disable_rewards_normalization, "disable-rewards-normalization", group,
                 "raw rewards: nothing of the group is subtracted or divided by");
  options.option(loss.disable_grpo_std_normalization, "disable-grpo-std-normalization", group,
                 "subtract the group's mean only (Dr.GRPO)");
  options.option(loss.group_epsilon, "group-epsilon", group, "added to a group's std: vime and verl 1e-6, TRL 1e-4")
      .at_least(0.0);
  options
      .option(loss.reward_std_scope, "reward-std-scope", group,
              "the std that rewards are divided by: of their group, or of the whole rollout (batch)")
      .one_of({"group", "batch"});
  options.option(loss.normalize_advantages, "normalize-advantages", group, "whiten over all tokens of the rollout");
  options.option(loss.whiten_epsilon, "whiten-epsilon", group, "added to the variance that whitening divides by")
      .at_least(0.0);
  options.option(loss.gamma, "gamma", group, "discount of REINFORCE++").at_least(0.0).at_most(1.0);
  options.option(loss.discount_masked_tokens, "discount-masked-tokens", group,
                 "tokens that the model did not write discount too; verl: no");
}

void LossOptions::check() const {
  TANDEM_USER_CHECK(use_kl_loss || loss.kl_loss_coef == 0.0,
                    fmt::format("--kl-loss-coef {}: does nothing without --use-kl-loss; give both", loss.kl_loss_coef));
  TANDEM_USER_CHECK(ref_load.empty() || needs_reference(),
                    "--ref-load: no reference is read without --use-kl-loss (with --kl-loss-coef 0 it only reports the "
                    "KL); give it, or leave --ref-load out");
}

}  // namespace tandem::config
