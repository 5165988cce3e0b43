#include "config/loss_options.h"

#include <fmt/format.h>

#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/size.h"
#include "rl/losses.h"

namespace tandem::config {

namespace {

template <typename Row>
std::vector<std::string> names_of(std::span<const Row> rows) {
  std::vector<std::string> names;
  for (const Row& row : rows) names.emplace_back(row.name);
  return names;
}

bool divides_by_std(const rl::LossConfig& loss) {
  return rl::find_estimator(loss).advantage == rl::AdvantageKind::kGroupNormalised &&
         !loss.disable_rewards_normalization && !loss.disable_grpo_std_normalization;
}

bool whitens(const rl::LossConfig& loss) {
  using enum rl::AdvantageKind;
  const rl::AdvantageKind kind = rl::find_estimator(loss).advantage;
  return loss.normalize_advantages || kind == kDiscountedWhitened || kind == kGroupMeanWhitened ||
         kind == kRewardWhitened;
}

}  // namespace

std::function<bool()> LossOptions::has_surrogate(std::string_view name) const {
  return [this, name] { return rl::find_surrogate(loss).name == name; };
}

void LossOptions::visit(options::Options& options) {
  visit_policy_term(options);
  visit_token_choice(options);
  visit_other_terms(options);
  visit_corrections(options);
  visit_advantages(options);
  visit_reward_shaping(options);
  visit_distillation(options);
}

void LossOptions::visit_policy_term(options::Options& options) {
  const char* const group = "policy loss";
  options
      .option(loss.advantage_estimator, "advantage-estimator", group,
              "row of the loss table (docs/LOSSES.md): how rewards become advantages, and which surrogate and "
              "aggregation go with that")
      .one_of(names_of(rl::estimators()))
      .unsupported({"ppo", "gae"},
                   "needs a critic, a second model that predicts rewards, which is not trained here: give grpo, or "
                   "reinforce_plus_plus, which has PPO's loss and no critic")
      .fingerprinted();
  options
      .option(loss.pg_loss_type, "pg-loss-type", group,
              "surrogate of the policy loss; unset: the one of --advantage-estimator")
      .one_of(names_of(rl::surrogates()))
      .or_empty()
      .fingerprinted();
  options
      .option(loss.loss_aggregation, "loss-agg-mode", group,
              "how the terms of all tokens become one loss; unset: as --advantage-estimator does")
      .one_of(rl::aggregation_names())
      .or_empty()
      .fingerprinted();
  options.option(loss.calculate_per_token_loss, "calculate-per-token-loss", group,
                 "the loss is a mean over tokens instead of a mean over samples");
  options
      .option(loss.loss_norm_tokens, "loss-norm-tokens", group,
              "divisor of seq-mean-token-sum-norm (Dr.GRPO); 0: --rollout-max-response-len")
      .at_least(0.0)
      .used_if([this] { return rl::loss_aggregation(loss) == rl::Aggregation::kSampleSumNorm; },
               "--loss-agg-mode seq-mean-token-sum-norm");
  options
      .option(loss.sample_mean_epsilon, "sample-mean-epsilon", group,
              "number added to a sample's count of tokens when its mean is taken (verl 1e-8)")
      .at_least(0.0)
      .finite()
      .used_if([this] { return rl::loss_aggregation(loss) == rl::Aggregation::kSampleMean; },
               "--loss-agg-mode seq-mean-token-mean");
  options.option(loss.count_removed_samples, "count-removed-samples", group,
                 "a sample without a trained token still counts in the mean");
  options
      .option(loss.eps_clip, "eps-clip", group, "lower clip of the policy ratio: the ratio stays at or above 1 - this")
      .at_least(0.0)
      .at_most(1.0)
      .used_if([this] { return rl::find_surrogate(loss).name != "reinforce"; },
               "a --pg-loss-type that has a ratio, such as ppo");
  options
      .option(loss.eps_clip_high, "eps-clip-high", group,
              "upper clip of the policy ratio: the ratio stays at or below 1 + this; negative: the same as --eps-clip")
      .finite()
      .used_if([this] { return rl::find_surrogate(loss).name != "reinforce"; },
               "a --pg-loss-type that has a ratio, such as ppo");
  options
      .option(loss.eps_clip_c, "eps-clip-c", group,
              "dual clip: bound, above 1, of the ratio where the advantage is negative; 0: no dual clip")
      .at_least(0.0)
      .finite()
      .used_if([this] { return rl::find_surrogate(loss).name != "reinforce"; },
               "a --pg-loss-type that has a ratio, such as ppo");
  options
      .option(loss.cispo_max_ratio, "cispo-max-ratio", group,
              "ratio that CISPO clips at, from above only (TRL); 0: clip both sides with --eps-clip")
      .at_least(0.0)
      .finite()
      .used_if(has_surrogate("cispo"), "--pg-loss-type cispo");
  options
      .option(loss.sequence_ratio_per_token, "sequence-ratio-per-token", group,
              "the gradient of a sequence's ratio goes through each token's own term (GSPO-token)")
      .used_if([this] { return rl::find_surrogate(loss).ratio_level == rl::RatioLevel::kSequenceMean; },
               "a --pg-loss-type with the mean ratio of a sequence, such as gspo");
  options.option(loss.max_log_ratio, "max-log-ratio", group, "bound that log ratios are clamped to before exp")
      .greater_than(0.0)
      .at_most(rl::kMaxLogRatio)
      .used_if(
          [this] {
            return rl::find_surrogate(loss).name != "reinforce" || loss.use_tis || loss.behavior_kl_coef > 0.0 ||
                   (use_kl_loss && loss.use_unbiased_kl);
          },
          "a --pg-loss-type that has a ratio, such as ppo");
  options.option(loss.sapo_tau_pos, "sapo-tau-pos", group, "SAPO's temperature for positive advantages")
      .greater_than(0.0)
      .finite()
      .used_if(has_surrogate("sapo"), "--pg-loss-type sapo");
  options.option(loss.sapo_tau_neg, "sapo-tau-neg", group, "SAPO's temperature for advantages of 0 and below")
      .greater_than(0.0)
      .finite()
      .used_if(has_surrogate("sapo"), "--pg-loss-type sapo");
  options.option(loss.dro_beta, "dro-beta", group, "weight of DRO's squared log ratio")
      .at_least(0.0)
      .finite()
      .used_if(has_surrogate("dro"), "--pg-loss-type dro");
  options
      .option(loss.vespo_k_pos, "vespo-k-pos", group,
              "VESPO's exponent of a sequence's ratio, for advantages of 0 and above")
      .at_least(0.0)
      .finite()
      .used_if(has_surrogate("vespo"), "--pg-loss-type vespo");
  options
      .option(loss.vespo_lambda_pos, "vespo-lambda-pos", group,
              "VESPO's decay in a sequence's ratio, for advantages of 0 and above")
      .greater_than(0.0)
      .finite()
      .used_if(has_surrogate("vespo"), "--pg-loss-type vespo");
  options
      .option(loss.vespo_k_neg, "vespo-k-neg", group, "VESPO's exponent of a sequence's ratio, for negative advantages")
      .at_least(0.0)
      .finite()
      .used_if(has_surrogate("vespo"), "--pg-loss-type vespo");
  options
      .option(loss.vespo_lambda_neg, "vespo-lambda-neg", group,
              "VESPO's decay in a sequence's ratio, for negative advantages")
      .greater_than(0.0)
      .finite()
      .used_if(has_surrogate("vespo"), "--pg-loss-type vespo");
}

void LossOptions::visit_token_choice(options::Options& options) {
  const char* const group = "policy loss";
  options
      .option(loss.clip_cov_ratio, "clip-cov-ratio", group,
              "share of a step's tokens, at least one, that --pg-loss-type clip_cov takes out of the policy loss: at "
              "random among those whose covariance of advantage and log-prob is between its bounds")
      .greater_than(0.0)
      .at_most(1.0)
      .used_if(has_surrogate("clip_cov"), "--pg-loss-type clip_cov");
  options
      .option(loss.clip_cov_lb, "clip-cov-lb", group,
              "covariance above which --pg-loss-type clip_cov may choose a token")
      .finite()
      .used_if(has_surrogate("clip_cov"), "--pg-loss-type clip_cov");
  options
      .option(loss.clip_cov_ub, "clip-cov-ub", group,
              "covariance below which --pg-loss-type clip_cov may choose a token")
      .finite()
      .used_if(has_surrogate("clip_cov"), "--pg-loss-type clip_cov");
  options
      .option(loss.kl_cov_ratio, "kl-cov-ratio", group,
              "share of a step's tokens, at least one, that --pg-loss-type kl_cov penalises: those with the highest "
              "covariance of advantage and log-prob")
      .greater_than(0.0)
      .at_most(1.0)
      .used_if(has_surrogate("kl_cov"), "--pg-loss-type kl_cov");
  options
      .option(loss.kl_cov_coef, "kl-cov-coef", group,
              "coefficient of the penalty of --pg-loss-type kl_cov, |current - old log-prob| (verl's ppo_kl_coef)")
      .at_least(0.0)
      .finite()
      .used_if(has_surrogate("kl_cov"), "--pg-loss-type kl_cov");
  options
      .option(loss.top_entropy_quantile, "top-entropy-quantile", group,
              "share of a step's tokens, those of the highest entropy, that have a policy loss and a part in the bonus "
              "of --entropy-coef (TRL); it needs a forward more; 1: all tokens")
      .greater_than(0.0)
      .at_most(1.0);
}

void LossOptions::visit_other_terms(options::Options& options) {
  const char* const group = "policy loss";
  options.option(use_kl_loss, "use-kl-loss", group,
                 "score the reference and report the KL; needs --kl-loss-coef, which adds it to the loss");
  options
      .option(loss.kl_loss_coef, "kl-loss-coef", group,
              "coefficient of the KL loss, for --use-kl-loss; 0: the KL is reported and not trained on")
      .at_least(0.0)
      .finite()
      .needed_by(use_kl_loss, "use-kl-loss",
                 "give --kl-loss-coef 0.001 (verl's default), or --kl-loss-coef 0 to report the KL without training on "
                 "it");
  options
      .option(loss.kl_loss_type, "kl-loss-type", group,
              "estimate of the KL; a + after the name takes the gradient of k2 (verl)")
      .one_of(rl::kl_loss_types())
      .fingerprinted()
      .used_if([this] { return needs_reference(); }, "--use-kl-loss");
  options
      .option(loss.use_unbiased_kl, "use-unbiased-kl", group,
              "multiply the KL of --use-kl-loss by the token's policy ratio, which makes the gradient of k1, k3 and "
              "low_var_kl that of the reverse KL (TRL's use_bias_correction_kl), not that of k2 and abs; off: the "
              "estimate alone, as slime and verl have it")
      .remembered_as("false", use_kl_loss)
      .used_if([this] { return use_kl_loss; }, "--use-kl-loss");
  options.option(loss.kl_clamp, "kl-clamp", group, "bound that a token's low_var_kl is clamped to")
      .greater_than(0.0)
      .finite()
      .used_if([this] { return use_kl_loss && loss.kl_loss_type.starts_with("low_var_kl"); },
               "--use-kl-loss --kl-loss-type low_var_kl");
  options.option(ref_load, "ref-load", group, "Hugging Face directory of the reference model; unset: --hf-checkpoint")
      .path();
  options
      .option(
          loss.entropy_coef, "entropy-coef", group,
          "coefficient of the entropy bonus, the mean entropy over all trained tokens of the step, or over those of "
          "--top-entropy-quantile, which is subtracted from the loss")
      .finite();
}

void LossOptions::visit_corrections(options::Options& options) {
  const char* const group = "policy loss";
  options
      .option(loss.old_logprobs, "old-logprobs", group,
              "log-probs that the policy ratio compares with: those of the rollout, or proximal ones, of the weights "
              "before the first optimizer step on it (decoupled PPO), for --use-tis")
      .one_of(rl::kOldLogprobs);
  options.option(loss.use_tis, "use-tis", group,
                 "truncated importance sampling: weight each token's policy term by exp(old - sampled log-prob)");
  options.option(loss.tis_clip, "tis-clip", group, "upper bound of the weights of --use-tis")
      .greater_than(0.0)
      .finite()
      .used_if([this] { return loss.use_tis; }, "--use-tis");
  options.option(loss.tis_clip_low, "tis-clip-low", group, "lower bound of the weights of --use-tis")
      .at_least(0.0)
      .finite()
      .used_if([this] { return loss.use_tis; }, "--use-tis");
  options
      .option(
          loss.tis_mode, "tis-mode", group,
          "what becomes of a token whose weight of --use-tis is beyond its bounds: truncate clamps the weight, mask "
          "makes it 0 and still counts the token in the loss's mean (IcePop), reject takes the token out of the "
          "loss and out of its mean (slime)")
      .one_of(rl::kTisModes)
      .used_if([this] { return loss.use_tis; }, "--use-tis");
  options
      .option(loss.tis_level, "tis-level", group,
              "whether each token or each sequence has a weight of --use-tis; geometric: a sequence's is the geometric "
              "mean of its tokens', not their product")
      .one_of(rl::kTisLevels)
      .used_if([this] { return loss.use_tis; }, "--use-tis");
  options
      .option(loss.tis_veto, "tis-veto", group,
              "a sequence in which exp(old - sampled log-prob) of a token is below this has no part in the loss "
              "(slime's rs_veto_threshold, 1e-4 there); 0: off")
      .at_least(0.0)
      .less_than(1.0);
  options.option(loss.use_opsm, "use-opsm", group,
                 "off-policy sequence mask (slime): in samples that exceed --opsm-delta, tokens with a negative "
                 "advantage have no policy term");
  options
      .option(loss.opsm_delta, "opsm-delta", group,
              "threshold of --use-opsm, on a sample's mean of old - current log-probs")
      .finite()
      .used_if([this] { return loss.use_opsm; }, "--use-opsm");
  options
      .option(loss.off_policy_mask_threshold, "off-policy-mask-threshold", group,
              "TRL's off-policy mask: like --use-opsm, on a sample's mean of sampled - current log-probs; 0: off")
      .at_least(0.0)
      .finite();
  options
      .option(loss.behavior_kl_coef, "behavior-kl-coef", group,
              "coefficient of the squared current - sampled log-prob of each token, which is added to the loss "
              "(prime-rl's kl_tau, 1e-3 there); 0: off")
      .at_least(0.0)
      .finite();
  options.option(loss.mask_off_policy, "mask-offpolicy-in-partial-rollout", group,
                 "tokens that older weights sampled than those that are trained count as if their loss mask were 0");
  options
      .option(loss.get_mismatch_metrics, "get-mismatch-metrics", group,
              "report ois, tis and tis_abs always, and recompute the old log-probs, to show that they are the engine's")
      .does_not_affect_results();
}

void LossOptions::visit_advantages(options::Options& options) {
  const char* const group = "advantages";
  options.option(loss.disable_rewards_normalization, "disable-rewards-normalization", group,
                 "use rewards as they are: nothing of the group is subtracted or divided by");
  options.option(loss.disable_grpo_std_normalization, "disable-grpo-std-normalization", group,
                 "subtract the group's mean and do not divide by its standard deviation (Dr.GRPO)");
  options
      .option(loss.group_epsilon, "group-epsilon", group,
              "number added to a group's standard deviation: vime and verl 1e-6, TRL 1e-4")
      .at_least(0.0)
      .finite()
      .used_if([this] { return divides_by_std(loss); },
               "advantages that are divided by a standard deviation, as those of --advantage-estimator grpo are");
  options
      .option(loss.reward_std_scope, "reward-std-scope", group,
              "standard deviation that rewards are divided by: that of their group, or of the whole rollout (batch)")
      .one_of(rl::kRewardStdScopes)
      .used_if([this] { return divides_by_std(loss); },
               "advantages that are divided by a standard deviation, as those of --advantage-estimator grpo are");
  options
      .option(
          loss.reward_aggregation, "multi-objective-aggregation", group,
          "how several rewards become one advantage: their weighted sum is normalised, or each is normalised in its "
          "group before they are summed (GDPO)")
      .one_of(rl::kRewardAggregations);
  options
      .option(custom_advantage_path, "custom-advantage-path", group,
              "Python function that computes advantages of a rollout, FILE.py:function: it is given the groups, with "
              "what --advantage-estimator made of them, and returns numbers for samples, turns or tokens; unset: those "
              "of --advantage-estimator")
      .path()
      .does_not_affect_results();  // a checkpoint remembers the function itself: checkpoint/result_inputs.h
  options.option(loss.normalize_advantages, "normalize-advantages", group,
                 "whiten advantages over all tokens of the rollout");
  options
      .option(loss.whiten_epsilon, "whiten-epsilon", group, "number added to the variance when advantages are whitened")
      .at_least(0.0)
      .finite()
      .used_if([this] { return whitens(loss); }, "--normalize-advantages, or an --advantage-estimator that whitens");
  options.option(loss.gamma, "gamma", group, "discount of REINFORCE++")
      .at_least(0.0)
      .at_most(1.0)
      .used_if([this] { return rl::find_estimator(loss).advantage == rl::AdvantageKind::kDiscountedWhitened; },
               "--advantage-estimator reinforce_plus_plus");
  options
      .option(loss.discount_masked_tokens, "discount-masked-tokens", group,
              "tokens that the model did not write count for the discount too; verl: no")
      .used_if([this] { return rl::find_estimator(loss).advantage == rl::AdvantageKind::kDiscountedWhitened; },
               "--advantage-estimator reinforce_plus_plus");
}

void LossOptions::visit_reward_shaping(options::Options& options) {
  const char* const group = "advantages";
  options
      .option(loss.kl_coef, "kl-coef", group,
              "coefficient of the KL against the reference that is taken from the reward, before advantages are made")
      .at_least(0.0)
      .at_most(rl::kMaxPenalty);
  options
      .option(ref_update_interval, "ref-update-interval", group,
              "rollouts after which the reference becomes the policy as it is then; unset: the reference stays")
      .at_least(1)
      .at_most(base::kMaxCount);
  options
      .option(
          ref_mixup_alpha, "ref-mixup-alpha", group,
          "share of the policy in the reference that --ref-update-interval makes, the rest is the reference before: "
          "an average over time, which is kept in float32; 1: a copy")
      .greater_than(0.0)
      .at_most(1.0);
  options.option(
      loss.mask_truncated_completions, "mask-truncated-completions", group,
      "completions that were cut at a limit have no part in the loss; they stay in their group's statistics");
  options
      .option(loss.overlong_buffer_tokens, "overlong-buffer-len", group,
              "tokens before --rollout-max-response-len over which the reward falls, as in DAPO; 0: off")
      .at_least(0)
      .at_most(base::kMaxCount);
  options
      .option(loss.overlong_penalty_factor, "overlong-penalty-factor", group,
              "what a completion of --rollout-max-response-len tokens loses of its reward with --overlong-buffer-len")
      .greater_than(0.0)
      .at_most(rl::kMaxPenalty);
}

void LossOptions::check_reference() const {
  TANDEM_USER_CHECK(use_kl_loss || loss.kl_loss_coef == 0.0,
                    fmt::format("--kl-loss-coef {}: does nothing without --use-kl-loss; give both", loss.kl_loss_coef));
  TANDEM_USER_CHECK(loss.kl_coef == 0.0 || loss.kl_loss_coef == 0.0,
                    fmt::format("--kl-coef {} and --kl-loss-coef {}: the KL is either in the reward or in the loss; "
                                "leave one out",
                                loss.kl_coef, loss.kl_loss_coef));
  for (const auto& [flag, is_given] :
       {std::pair{"--ref-load", !ref_load.empty()}, {"--ref-update-interval", ref_update_interval.has_value()}}) {
    TANDEM_USER_CHECK(!is_given || needs_reference(),
                      fmt::format("{0}: no reference is read without --kl-coef or --use-kl-loss (with --kl-loss-coef 0 "
                                  "it only reports the KL); give one of them, or leave {0} out",
                                  flag));
  }
  TANDEM_USER_CHECK(ref_mixup_alpha == 1.0 || ref_update_interval,
                    fmt::format("--ref-mixup-alpha {}: the reference is never renewed without --ref-update-interval; "
                                "give both",
                                ref_mixup_alpha));
}

void LossOptions::check_reward_aggregation() const {
  if (loss.reward_aggregation == "sum_then_normalize") return;
  const auto refuse = [](bool is_given, const std::string& flag, const std::string& why) {
    TANDEM_USER_CHECK(
        !is_given,
        fmt::format("--multi-objective-aggregation normalize_then_sum and {}: {}; leave one out", flag, why));
  };
  refuse(rl::find_estimator(loss).advantage != rl::AdvantageKind::kGroupNormalised,
         "--advantage-estimator " + loss.advantage_estimator, "its advantages are not divided by a standard deviation");
  const std::string divides = "each reward is divided by its standard deviation in the group";
  refuse(loss.disable_rewards_normalization, "--disable-rewards-normalization", divides);
  refuse(loss.disable_grpo_std_normalization, "--disable-grpo-std-normalization", divides);
  refuse(loss.reward_std_scope != "group", "--reward-std-scope " + loss.reward_std_scope, divides);
  const std::string penalty = "a penalty is taken from the sum of the rewards, which is not formed";
  refuse(loss.kl_coef > 0.0, fmt::format("--kl-coef {}", loss.kl_coef), penalty);
  refuse(loss.overlong_buffer_tokens > 0, fmt::format("--overlong-buffer-len {}", loss.overlong_buffer_tokens),
         penalty);
}

void LossOptions::check() const {
  check_reference();
  check_reward_aggregation();
  const size_t colon = custom_advantage_path.rfind(':');
  TANDEM_USER_CHECK(custom_advantage_path.empty() ||
                        (colon != std::string::npos && colon > 0 && colon + 1 < custom_advantage_path.size()),
                    fmt::format("--custom-advantage-path {}: write it as FILE.py:FUNCTION", custom_advantage_path));
  check_distillation();
  const rl::Surrogate& surrogate = rl::find_surrogate(loss);
  TANDEM_USER_CHECK(
      !loss.use_tis || loss.tis_level != "sequence" || surrogate.weight_level != rl::WeightLevel::kRatio,
      fmt::format("--tis-level sequence: --pg-loss-type {} multiplies a sample's ratio by the product of its tokens' "
                  "weights already; give --tis-level token or geometric",
                  surrogate.name));
  TANDEM_USER_CHECK(
      loss.top_entropy_quantile == 1.0 || surrogate.choice == rl::CovarianceChoice::kNone,
      fmt::format("--top-entropy-quantile {} and --pg-loss-type {}: tokens are chosen either by their entropy or by "
                  "their covariance; leave one out",
                  loss.top_entropy_quantile, surrogate.name));
  TANDEM_USER_CHECK(loss.overlong_buffer_tokens > 0 || loss.overlong_penalty_factor == 1.0,
                    fmt::format("--overlong-penalty-factor {}: does nothing without --overlong-buffer-len; give both",
                                loss.overlong_penalty_factor));
  TANDEM_USER_CHECK(loss.clip_cov_lb < loss.clip_cov_ub, fmt::format("--clip-cov-lb {}: must be below --clip-cov-ub {}",
                                                                     loss.clip_cov_lb, loss.clip_cov_ub));
  TANDEM_USER_CHECK(loss.eps_clip_c == 0.0 || loss.eps_clip_c > 1.0,
                    fmt::format("--eps-clip-c {}: must be above 1, or 0 for no dual clip", loss.eps_clip_c));
  TANDEM_USER_CHECK(loss.tis_clip >= loss.tis_clip_low,
                    fmt::format("--tis-clip {}: must be at least --tis-clip-low {}", loss.tis_clip, loss.tis_clip_low));
  TANDEM_USER_CHECK(
      !loss.calculate_per_token_loss || loss.loss_aggregation.empty() || loss.loss_aggregation == "token-mean",
      fmt::format("--calculate-per-token-loss and --loss-agg-mode {}: contradict each other; leave one out",
                  loss.loss_aggregation));
}

}  // namespace tandem::config
