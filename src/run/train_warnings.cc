#include "run/train_warnings.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/message_text.h"
#include "rl/losses.h"

namespace tandem::run {

namespace {

// The mean log ratio of a sample seldom exceeds this.
constexpr double kWidestSequenceClip = 0.01;

void warn_of_truncation(const config::TrainConfig& config, std::vector<std::string>& warnings) {
  if (!config.rollout.sampling().truncates()) return;
  warnings.push_back(
      "--rollout-top-p, -top-k or -min-p cut the distribution: samples are off policy by nature "
      "(train_rollout_logprob_abs_diff compares the uncut ones; train/tis is the mean weight of what was cut, which "
      "--use-tis gives to each token)");
  if (config.loss.loss.use_tis && config.loss.loss.tis_level == "sequence") {
    warnings.push_back(
        "--tis-level sequence: with truncated sampling a sample's weight is the product of what was cut at each of its "
        "tokens, so long samples weigh next to nothing (0.97 a token is 6e-14 after 1,000); give --tis-level token");
  }
}

void warn_of_kl(const config::LossOptions& options, std::vector<std::string>& warnings) {
  const rl::LossConfig& loss = options.loss;
  const bool is_default = loss.kl_loss_type == rl::LossConfig().kl_loss_type;
  if (loss.kl_coef > 0.0 && !options.use_kl_loss && loss.kl_loss_type != "k1" && !is_default) {
    warnings.push_back(fmt::format(
        "--kl-loss-type {}: is the estimate of --use-kl-loss; the KL that --kl-coef takes from the reward is "
        "always k1, the one whose policy gradient is that of the KL",
        loss.kl_loss_type));
  }
  if (loss.kl_loss_coef == 0.0) return;
  if (loss.use_unbiased_kl && (loss.kl_loss_type == "k2" || loss.kl_loss_type == "abs")) {
    // The gradient of abs without the ratio is that of the distance sum |policy - reference|.
    const std::string_view otherwise = loss.kl_loss_type == "k2" ? ", or --no-use-unbiased-kl" : "";
    warnings.push_back(
        fmt::format("--kl-loss-type {0}: times the policy ratio, which --use-unbiased-kl (the default) gives it, its "
                    "expected gradient on policy is not that of the reverse KL; give {0}+, whose gradient is{1}",
                    loss.kl_loss_type, otherwise));
  }
  if (loss.kl_loss_type != "k1" || loss.use_unbiased_kl) return;
  warnings.push_back(
      "--kl-loss-type k1 --no-use-unbiased-kl: its expected gradient on policy is 0, so it holds nothing near the "
      "reference; leave out --no-use-unbiased-kl, or give low_var_kl, k2 or k1+");
}

// Warns if --use-tis changes nothing: its importance weights correct for an engine that computes other log-probs than
// the trainer, and ours computes the same.
void warn_of_tis_without_effect(const config::TrainConfig& config, std::vector<std::string>& warnings) {
  if (!config.loss.loss.use_tis || config.rollout.sampling().truncates() || config.keeps_groups()) return;
  if (config.is_inexact_device || !config.load_debug_rollout_data.empty()) return;
  warnings.push_back(
      "--use-tis: does nothing here: trainer and engine compute the same log-probs, and samples are of the weights "
      "that are trained, so each weight is 1; leave it out (it is for truncated sampling and for samples of older "
      "weights)");
}

// A run that learns from the teacher alone, which is the model that it begins with, is where the teacher wants it.
void warn_of_teacher_like_the_policy(const config::TrainConfig& config, std::vector<std::string>& warnings) {
  const rl::OpdConfig& opd = config.loss.loss.opd;
  if (!opd.is_on || opd.use_task_rewards || opd.on_policy_share < 1.0 || config.model.random_init) return;
  const std::vector<config::LossOptions::Teacher> teachers = config.loss.opd_teachers();
  std::error_code none;
  const auto is_the_policy = [&](const config::LossOptions::Teacher& teacher) {
    return !teacher.is_elsewhere() && std::filesystem::equivalent(teacher.directory, config.model.hf_checkpoint, none);
  };
  if (!std::ranges::all_of(teachers, is_the_policy)) return;
  warnings.push_back(
      fmt::format("--opd-teacher-load {}: is the model of --hf-checkpoint, and nothing else is learnt from: the policy "
                  "begins at its teacher, so every gradient is 0; give another model, or --opd-use-task-rewards",
                  teachers.front().directory));
}

// Warns if the constants of a row are not those of its paper.
void warn_of_constants(const rl::LossConfig& loss, std::vector<std::string>& warnings) {
  const std::string_view surrogate = rl::find_surrogate(loss).name;
  if (surrogate == "gspo" && loss.eps_clip >= kWidestSequenceClip) {
    warnings.push_back(
        fmt::format("--eps-clip {}: GSPO's ratio is the mean over a sample, which hardly ever moves so far, so nothing "
                    "is clipped; its paper has --eps-clip 3e-4 --eps-clip-high 4e-4",
                    loss.eps_clip));
  }
  if (surrogate == "cispo" && loss.cispo_max_ratio == 0.0 && loss.eps_clip < 1.0) {
    warnings.push_back(
        fmt::format("--eps-clip {}: CISPO as published clips above only, here ratios below {} count as that; give "
                    "--eps-clip 1 --eps-clip-high 4, or --cispo-max-ratio 5",
                    loss.eps_clip, 1.0 - loss.eps_clip));
  }
  if (surrogate == "cispo" && loss.loss_aggregation.empty() &&
      rl::loss_aggregation(loss) != rl::Aggregation::kTokenMean) {
    const auto name = rl::aggregation_names()[static_cast<size_t>(rl::loss_aggregation(loss))];
    warnings.push_back(
        fmt::format("--advantage-estimator {}: its terms are aggregated by {}; CISPO as published, and TRL's, is the "
                    "mean over tokens, give --loss-agg-mode token-mean",
                    loss.advantage_estimator, name));
  }
  if (loss.advantage_estimator == "dapo" && surrogate == "ppo" && loss.eps_clip_high < 0.0) {
    warnings.push_back(
        "--advantage-estimator dapo: this row is the mean over tokens alone; its paper clips higher above than below, "
        "give --eps-clip-high 0.28");
  }
}

void warn_of_old_samples(const config::TrainConfig& config, std::vector<std::string>& warnings) {
  const int64_t steps = config.steps_per_rollout();
  if (rl::find_surrogate(config.loss.loss).name != "reinforce" || steps == 1) return;
  warnings.push_back(fmt::format(
      "reinforce with {} optimizer steps for each rollout: its loss has no ratio to the policy that sampled, "
      "so all steps but the first train on samples of older weights as if they were new; give one step "
      "(--num-steps-per-rollout 1 --num-epochs-per-rollout 1), or --pg-loss-type ppo",
      steps));
}

// KL-Cov's penalty is of the log ratio, which is 0 where the weights are those that sampled.
void warn_of_penalty_without_gradient(const config::TrainConfig& config, std::vector<std::string>& warnings) {
  if (rl::find_surrogate(config.loss.loss).choice != rl::CovarianceChoice::kPenalised) return;
  if (config.steps_per_rollout() > 1 || config.keeps_groups()) return;
  warnings.push_back(
      "--pg-loss-type kl_cov with one optimizer step for each rollout: the policy ratio is 1 there, so its penalty has "
      "no gradient; give several steps, such as --num-steps-per-rollout 4, or --pg-loss-type clip_cov");
}

}  // namespace

std::optional<std::string> adapter_lr_warning(const config::LoraOptions& lora, double lr, double full_lr) {
  // The learning rate that suits an adapter is about ten times that of full training (Schulman et al., 2025, "LoRA
  // Without Regret"); half of that is still one.
  constexpr double kFactor = 10.0;
  if (!lora.rank || lr == 0.0 || lr >= 0.5 * kFactor * full_lr) return std::nullopt;
  return fmt::format(
      "--lora-rank {} with --lr {:g}: that is a learning rate for all weights, with which an adapter hardly changes; "
      "give about ten times as much, such as --lr {:g}",
      *lora.rank, lr, kFactor * full_lr);
}

std::optional<std::string> warm_up_warning(const trainer::Schedule& schedule, int64_t total_steps) {
  if (schedule.warmup_steps <= total_steps || total_steps == 0) return std::nullopt;
  return fmt::format(
      "--lr-warmup-iters {}: the run ends after {}, before the learning rate has risen to --lr; lower it",
      schedule.warmup_steps, base::counted(total_steps, "optimizer step"));
}

std::vector<std::string> train_warnings(const config::TrainConfig& config) {
  std::vector<std::string> warnings;
  warn_of_truncation(config, warnings);
  warn_of_tis_without_effect(config, warnings);
  warn_of_teacher_like_the_policy(config, warnings);
  warn_of_kl(config.loss, warnings);
  warn_of_constants(config.loss.loss, warnings);
  const double full_lr = config::TrainConfig().optimizer.schedule.max_lr;
  if (auto text = adapter_lr_warning(config.lora, config.optimizer.schedule.max_lr, full_lr))
    warnings.push_back(std::move(*text));
  warn_of_old_samples(config, warnings);
  warn_of_penalty_without_gradient(config, warnings);
  return warnings;
}

}  // namespace tandem::run
