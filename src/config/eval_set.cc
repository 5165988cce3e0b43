#include "config/eval_set.h"

#include <fmt/format.h>

#include <string>

#include "base/check.h"
#include "base/size.h"
#include "reward/reward_rules.h"

namespace tandem::config {

void EvalSet::visit_defaults(options::Options& table) {
  const char* const group = "data set";
  table.option(options.n_samples_per_eval_prompt, "n_samples_per_eval_prompt", group, "completions of each prompt")
      .at_least(1)
      .at_most(base::kMaxCount);
  table.option(options.temperature, "temperature", group, "sampling temperature")
      .at_least(rl::kMinTemperature)
      .or_zero()
      .at_most(100.0);
  table.option(options.top_p, "top_p", group, "top-p").greater_than(0.0).at_most(1.0);
  table.option(options.top_k, "top_k", group, "top-k; -1: off").at_least(-1);
  table.option(options.max_response_len, "max_response_len", group, "tokens of a completion at most")
      .at_least(1)
      .at_most(base::kMaxCount);
  table.option(options.max_prompt_len, "max_prompt_len", group, "tokens of a prompt at most; 0: keep all")
      .at_least(0)
      .at_most(base::kMaxCount);
  table.option(options.max_context_len, "max_context_len", group, "tokens of prompt and completion at most")
      .at_least(0)
      .at_most(base::kMaxCount);
  table.option(options.input_key, "input_key", group, "key of the prompt");
  table.option(options.label_key, "label_key", group, "key of the label");
  table.option(options.reward_key, "reward_key", group, "number to take when a reward is a dict");
  table.option(rm_type, "rm_type", group, "built-in rewards").one_or_more().one_of(reward::rule_names());
  table.option(custom_rm_path, "custom_rm_path", group, "Python functions that give rewards, FILE.py:function")
      .one_or_more()
      .path();
  table.option(reward_weights, "reward_weights", group, "weight of each reward in the sum").one_or_more().finite();
  table.option(group_rm, "group_rm", group, "a slime function takes all samples of a group at once");
  table.option(pass_reward, "pass_reward", group, "name of the reward by which pass@k judges a sample");
  table.option(pass_threshold, "pass_threshold", group, "value from which on it lets a sample pass").finite();
}

void EvalSet::visit(options::Options& table) {
  table.option(name, "name", "data set", "name in metrics and files");
  table.option(path, "path", "data set", "JSONL file").path();
  visit_defaults(table);
}

EvalSet EvalSet::without_reward() const {
  EvalSet set = *this;
  set.rm_type.clear();
  set.custom_rm_path.clear();
  set.reward_weights.clear();
  set.options.reward_key.reset();
  set.group_rm.reset();
  set.pass_reward.reset();
  set.pass_threshold.reset();
  return set;
}

void EvalSet::inherit_reward(const EvalSet& defaults, const EvalOptions& flags) {
  if (!options.reward_key) options.reward_key = names_reward() ? flags.reward_key : defaults.options.reward_key;
  if (names_reward()) return;
  rm_type = defaults.rm_type;
  custom_rm_path = defaults.custom_rm_path;
  if (reward_weights.empty()) reward_weights = defaults.reward_weights;
  if (!group_rm) group_rm = defaults.group_rm;
  if (!pass_reward) pass_reward = defaults.pass_reward;
  if (!pass_threshold) pass_threshold = defaults.pass_threshold;
}

RewardOptions EvalSet::reward(RewardOptions base) const {
  if (names_reward()) {
    base.rm_type = rm_type;
    base.custom_rm_path = custom_rm_path;
    base.rm_model.clear();
    base.reward_weights.clear();  // this and the next four belong to the other reward
    base.reward_key.clear();
    base.group_rm = false;
    base.pass_reward.clear();
    base.pass_threshold = 1.0;
  }
  if (!reward_weights.empty()) base.reward_weights = reward_weights;
  base.reward_key = options.reward_key.value_or(base.reward_key);
  base.group_rm = group_rm.value_or(base.group_rm);
  base.pass_reward = pass_reward.value_or(base.pass_reward);
  base.pass_threshold = pass_threshold.value_or(base.pass_threshold);
  if (place.empty()) return base;
  try {
    base.check_key("reward_key", base.reward_key);
    base.check();
  } catch (const UserError& error) {
    throw UserError(fmt::format("{}: {}", place, error.what()));
  }
  return base;
}

}  // namespace tandem::config
