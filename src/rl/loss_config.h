// Selects the row of the loss table for a run, and sets its constants. It is plain data that flags, TOML and
// checkpoints fill in. The defaults are vime/slime's maths; the comments say where TRL's or verl's constants differ.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::rl {

// These are the values that some fields may have; those of the others are in the tables of losses.h.
inline constexpr std::string_view kLossTypes[] = {"policy_loss", "sft_loss"};
inline constexpr std::string_view kTisModes[] = {"truncate", "mask", "reject"};
inline constexpr std::string_view kTisLevels[] = {"token", "sequence", "geometric"};
inline constexpr std::string_view kOldLogprobs[] = {"rollout", "proximal"};
inline constexpr std::string_view kRewardStdScopes[] = {"group", "batch"};
inline constexpr std::string_view kRewardAggregations[] = {"sum_then_normalize", "normalize_then_sum"};

constexpr double kMaxLogRatio = 700.0;  // exp() overflows above
constexpr double kMaxPenalty = 1e6;     // limit of kl_coef and overlong_penalty_factor: penalized rewards stay finite

// On-policy distillation: a teacher scores the policy's own samples. docs/DISTILLATION.md has formulas and sources.
struct OpdConfig {
  bool is_on = false;
  // Each token's advantage loses this times (sampled - teacher log-prob), as slime's opd_kl_coef. 0: none is lost
  double kl_coef = 1.0;
  bool use_task_rewards = true;  // false: rewards make no advantages; the teacher alone does (verl's use_task_rewards)
  // This times the divergence between the policy's and the teacher's distribution of each token is added to the loss.
  // 0: there is no such term, and the teacher computes no distribution
  double loss_coef = 0.0;
  // 1: the reverse KL, of the policy against the teacher; 0: the forward KL; between them the generalised
  // Jensen-Shannon divergence (arXiv 2306.13649, eq. 1; beta of TRL's DistillationConfig). In [0, 1]
  double beta = 1.0;
  // Both distributions are over the teacher's most likely tokens alone, so many of them. 0: the whole vocabulary
  int64_t top_k = 0;
  // Share of the prompts whose completion is sampled; the others have the answer that their line gives, and the
  // distillation loss alone (GKD's lambda). In [0, 1]
  double on_policy_share = 1.0;

  bool has_loss() const { return is_on && loss_coef > 0.0; }
  bool has_given_answers() const { return is_on && on_policy_share < 1.0; }
};

struct LossConfig {
  // It is "policy_loss", or "sft_loss": the negative log-likelihood, which reads no advantages and no old log-probs.
  std::string loss_type = "policy_loss";
  // This names a row of the estimator table (losses.h): advantage, surrogate, aggregation.
  std::string advantage_estimator = "grpo";
  // This names a row of the surrogate table: "ppo", "reinforce", "gspo", ...; "" is the estimator's own.
  std::string pg_loss_type = "";
  // The aggregation makes one number of per-token terms: "seq-mean-token-mean", "token-mean", "token-sum",
  // "seq-mean-token-sum", "seq-mean-token-sum-norm" (verl's names); "" is the row's own. calculate_per_token_loss means
  // "token-mean".
  std::string loss_aggregation = "";
  bool calculate_per_token_loss = false;
  // The divisor of "seq-mean-token-sum-norm" is the longest completion that the run allows (TRL's
  // max_completion_length, verl's loss_scale_factor). 0 means unset; `tandem train` then takes
  // --rollout-max-response-len.
  double loss_norm_tokens = 0.0;
  double sample_mean_epsilon = 0.0;  // added to a sample's token count in its mean (verl 1e-8)
  // A sample without a single trained token still counts in G, and as one token in the per-token mean. verl and TRL
  // count it in G only.
  bool count_removed_samples = true;

  // Clipping keeps the ratio r in [1 - eps_clip, 1 + eps_clip_high].
  double eps_clip = 0.2;
  double eps_clip_high = -1.0;   // < 0: equal to eps_clip
  double eps_clip_c = 0.0;       // > 1: dual clip, a negative advantage's term is at most -c A (TRL's delta); 0: off
  double cispo_max_ratio = 0.0;  // > 0: CISPO clips at this ratio and only above (TRL's epsilon_high); 0: both sides
  // The ratio of a sequence-level row reaches each token with that token's own term ("GSPO-token", verl) instead of
  // through the sequence's mean (vime, TRL). They differ only where weights or advantages vary inside a sample.
  bool sequence_ratio_per_token = false;
  // |log ratio| is clamped to this before exp(): one stale token must not make the step infinite. verl's constant.
  double max_log_ratio = 20.0;
  double dro_beta = 0.1;      // weight of DRO's quadratic term
  double sapo_tau_pos = 1.0;  // temperatures of the soft gate for A > 0 and the rest
  double sapo_tau_neg = 1.05;
  // VESPO's exponent and decay of a sequence's ratio, for A >= 0 and A < 0 (TRL's constants).
  double vespo_k_pos = 2.0, vespo_lambda_pos = 3.0;
  double vespo_k_neg = 3.0, vespo_lambda_neg = 2.0;
  // Clip-Cov and KL-Cov choose this share of a step's trained tokens, one at least, by their covariance of advantage
  // and log-prob (token_choice.h): "clip_cov" at random between the bounds, "kl_cov" the highest (verl's constants).
  double clip_cov_ratio = 0.0002;
  double clip_cov_lb = 1.0, clip_cov_ub = 5.0;
  double kl_cov_ratio = 0.0002;
  double kl_cov_coef = 0.1;  // factor of |log ratio|, which is added to the terms of the chosen tokens
  // Only this share of a step's trained tokens, those of the highest entropy, has a policy term (arXiv 2506.01939;
  // TRL's name). 1: all
  double top_entropy_quantile = 1.0;

  // The KL estimator against the reference is "k1", "k2", "k3", "low_var_kl", "abs"; a "+" after it takes that value
  // with the gradient of k2 (verl). verl's "kl" is k1, "mse" is k2 and its "k3" is low_var_kl.
  double kl_loss_coef = 0.0;  // 0: the KL is a metric if there are reference log-probs, and not in the loss
  std::string kl_loss_type = "low_var_kl";
  // The KL is multiplied by the token's ratio, whose gradient makes the expected gradient of k1 and k3 that of the
  // reverse KL, also on policy (DeepSeek-V3.2, arXiv 2512.02556; TRL's use_bias_correction_kl). It does not do so for
  // k2 and abs. With a "+" the ratio is a constant factor, because the gradient of k2 is that of the reverse KL
  // already.
  bool use_unbiased_kl = true;
  double kl_clamp = 10.0;  // bound of low_var_kl

  // The mean of the entropy is over all trained tokens of the step, whatever loss_aggregation is, or over those that
  // top_entropy_quantile leaves (TRL).
  double entropy_coef = 0.0;

  // The policy ratio r = exp(logp - old) compares with "rollout": the log-probs that the engine recorded; or with
  // "proximal": those of the weights before the first optimizer step on the samples (decoupled PPO, AReaL, arXiv
  // 2505.24298), which use_tis weighs against those of the engine.
  std::string old_logprobs = "rollout";

  // Truncated importance sampling multiplies each token's policy term by a constant weight, from w = exp(old -
  // sampled).
  bool use_tis = false;
  double tis_clip = 2.0;
  double tis_clip_low = 0.0;
  // The modes are "truncate": w is clamped to [low, high]; "mask" (IcePop): w inside it, 0 outside; "reject" (slime): a
  // token outside leaves the loss mask, and so the denominators of the means, the KL and the entropy too.
  std::string tis_mode = "truncate";
  // The levels are "token"; "sequence": w is the product over the sample; "geometric": w is its geometric mean.
  std::string tis_level = "token";
  // A sample with a token whose exp(old - sampled) is below this leaves the loss, with its KL and entropy, and stays in
  // the denominators (slime's rs_veto_threshold, 1e-4 there). 0: off
  double tis_veto = 0.0;
  // The difference metric compares the engine's log-probs with the current ones (always so in Tandem's training), and
  // otherwise with the old ones.
  bool use_rollout_logprobs = true;
  // The metrics of importance sampling are reported even if nothing was truncated, and the trainer recomputes the old
  // log-probs.
  bool get_mismatch_metrics = false;

  // With slime's off-policy sequence mask, tokens with A < 0 of a sample with mean(old - current) > opsm_delta leave
  // the policy term.
  bool use_opsm = false;
  double opsm_delta = 1e-4;
  // TRL's off_policy_mask_threshold does the same with mean(sampled - current), which also counts the change by
  // truncated sampling.
  double off_policy_mask_threshold = 0.0;  // 0: off
  // Tokens that older weights sampled than those that are trained leave the loss mask (reward_shaping.h; slime's
  // mask_offpolicy_in_partial_rollout).
  bool mask_off_policy = false;
  // The term coef (logp - sampled)^2 of each token pulls the policy back to the one that sampled (prime-rl's kl_tau,
  // 1e-3 there; Kimi K2.5, arXiv 2602.02276). 0: off
  double behavior_kl_coef = 0.0;

  // These fields are about advantages.
  bool disable_rewards_normalization = false;   // raw rewards
  bool disable_grpo_std_normalization = false;  // Dr.GRPO
  double group_epsilon = 1e-6;                  // added to a group's std: vime and verl 1e-6, TRL 1e-4
  bool normalize_advantages = false;            // whiten over the tokens of the whole rollout
  double whiten_epsilon = 1e-8;
  std::string reward_std_scope = "group";  // "group", or "batch": one std of all rewards (TRL's scale_rewards)
  // Several rewards are summed and their sum is normalised, or each is normalised in its group and then they are summed
  // (GDPO, arXiv 2601.05242; TRL's multi_objective_aggregation).
  std::string reward_aggregation = "sum_then_normalize";
  double gamma = 1.0;                  // REINFORCE++ discount
  bool discount_masked_tokens = true;  // tokens that the model did not write discount too; verl: false

  OpdConfig opd = {};

  // These fields change a reward before its advantage is computed (reward_shaping.h).
  double kl_coef = 0.0;  // factor of the KL against the reference, which is subtracted from the reward; 0: off
  // A completion that was cut at a limit has no part in the loss and stays in its group's statistics (TRL).
  bool mask_truncated_completions = false;
  int64_t overlong_buffer_tokens = 0;    // tokens before max_response_tokens over which the reward falls (DAPO); 0: off
  double overlong_penalty_factor = 1.0;  // penalty at max_response_tokens
  // This is the longest completion that the run allows. 0 means unset; `tandem train` then takes
  // --rollout-max-response-len.
  int64_t max_response_tokens = 0;
};

// Returns what earlier versions computed otherwise under these fields, by name, each with today's definition. It is
// empty for most configurations.
std::map<std::string, std::string> new_definitions(const LossConfig& config);

// Returns why this loss must not train on samples of older weights, as one line with a remedy, or nullopt if it may. It
// may if something keeps a stale token from moving the policy freely: a clip or a pull that compares with the policy
// that sampled, a weight, or a mask.
std::optional<std::string> why_not_off_policy(const LossConfig& config);

// Throws BugError when a name is unknown, a constant is out of range, or two fields contradict: the options refuse it
// before.
void check_loss_config(const LossConfig& config);

}  // namespace tandem::rl
