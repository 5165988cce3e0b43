#include "run/health_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/json.h"
#include "reward/reward_rules.h"
#include "rl/losses.h"

namespace tandem::run {

namespace {

bool told_not_to_open(const config::DataOptions& data) {
  const base::Json given = base::parse_json(data.apply_chat_template_kwargs, "--apply-chat-template-kwargs");
  const auto found = given.find("add_generation_prompt");
  return found != given.end() && *found == false;
}

}  // namespace

rl::HealthSettings signal_settings(const config::OptimizerOptions& optimizer, int64_t num_steps) {
  rl::HealthSettings settings;
  settings.lr = optimizer.schedule.max_lr;
  settings.lr_warmup_steps = optimizer.schedule.warmup_steps;
  settings.num_steps = num_steps;
  return settings;
}

rl::HealthSettings signal_settings(const config::TrainConfig& config, const model::ModelConfig& model,
                                   const session::PromptSet& prompts, int64_t num_rollouts, int64_t num_steps) {
  rl::HealthSettings settings = signal_settings(config.optimizer, num_steps);
  settings.grader = config.reward.name();
  settings.gives_only_zero = settings.grader == "--rm-type none" && !config.custom_generate.is_on();
  settings.asks_service = settings.grader == fmt::format("--rm-type {}", reward::kRemoteRule);
  if (config.custom_generate.is_on())
    settings.generate = "--custom-generate-function-path " + config.custom_generate.function;
  settings.lowest_reward = config.reward.lowest_reward();
  settings.compares_group =
      rl::find_estimator(config.loss.loss).needs_group && !config.loss.loss.disable_rewards_normalization;
  const rl::OpdConfig& opd = config.loss.loss.opd;
  settings.learns_from_teacher = opd.is_on && (opd.kl_coef > 0.0 || opd.has_loss());
  if (!config.loss.custom_advantage_path.empty())
    settings.advantages = "--custom-advantage-path " + config.loss.custom_advantage_path;
  settings.has_penalties = config.loss.loss.kl_coef > 0.0 || config.loss.loss.overlong_buffer_tokens > 0;
  settings.temperature = config.rollout.temperature;
  settings.max_response_tokens = config.rollout.response_len();
  const int64_t context =
      config.rollout.max_context_len > 0 ? config.rollout.max_context_len : int64_t{model.max_positions};
  settings.context_may_cut = prompts.longest_tokens + settings.max_response_tokens > context;
  settings.ignore_eos = config.rollout.ignore_eos;
  settings.has_stop_texts = !config.rollout.stop.empty();
  settings.can_stop = !model.eos_token_ids.empty() || !config.rollout.stop_token_ids.empty() || settings.has_stop_texts;
  settings.eos_token_ids = fmt::format("{}", fmt::join(model.eos_token_ids, ", "));
  settings.filter = config.dynamic_sampling.filter_path;
  settings.has_filter_budget = config.dynamic_sampling.max_sampled_groups.has_value();
  settings.num_rollouts = num_rollouts;
  settings.template_opens_answer = prompts.template_opens_answer;
  settings.template_told_not_to = !prompts.template_opens_answer && told_not_to_open(config.data);
  settings.num_prompts_dropped = prompts.num_too_long;
  settings.num_prompts_read = prompts.num_too_long + static_cast<int64_t>(prompts.prompts.size());
  return settings;
}

}  // namespace tandem::run
