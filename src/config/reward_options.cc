#include "config/reward_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/size.h"
#include "text/reward_rules.h"

namespace tandem::config {

namespace {

// "exact, math or dapo".
std::string rule_names() {
  std::string names;
  for (const text::RewardRule& rule : text::kRewardRules) {
    const bool is_last = &rule == &text::kRewardRules.back();
    names += (names.empty() ? "" : is_last ? " or " : ", ") + std::string(rule.name);
  }
  return names;
}

const text::RewardRule& find_rule(const std::string& name) {
  const auto* const rule = std::ranges::find(text::kRewardRules, name, &text::RewardRule::name);
  TANDEM_CHECK(rule != text::kRewardRules.end(), "no reward is called", name);
  return *rule;
}

double finite_number(const std::string& text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
  TANDEM_USER_CHECK(is_number, "--rm-failure-reward", text + ": give lowest, drop or a finite number such as -1");
  return value;
}

}  // namespace

void RewardOptions::visit(base::Options& options) {
  const char* const group = "reward";
  std::vector<std::string> rules;
  for (const text::RewardRule& rule : text::kRewardRules) rules.emplace_back(rule.name);
  options
      .option(rm_type, "rm-type", group,
              "built-in reward: the label exactly, the label as a boxed or last number (math), or DAPO's; this or "
              "--custom-rm-path")
      .one_of(rules)
      .unsupported({"deepscaler", "f1", "gpqa", "ifbench", "random", "remote_rm", "boxed_*"},
                   fmt::format("is known from vime and not in Tandem yet; use {}, or --custom-rm-path FILE.py:function",
                               fmt::join(rules, ", ")));
  options
      .option(
          custom_rm_path, "custom-rm-path", group,
          "Python function that gives rewards, FILE.py:function, in the TRL, verl or slime dialect; this or --rm-type")
      .path()
      .does_not_affect_results();
  options.option(reward_key, "reward-key", group, "number to take when a reward is a dict; unset: score");
  options.option(group_rm, "group-rm", group,
                 "a slime function takes all samples of a group at once (TRL functions always do)");
  options.option(python, "rm-python", group, "interpreter of the reward code, 3.9 or newer; unset: Tandem's own")
      .path();
  options.option(limits.num_processes, "rm-num-workers", group, "processes that compute rewards")
      .at_least(1)
      .at_most(base::kMaxCount)
      .at_most(256)
      .does_not_affect_results();
  options
      .option(limits.max_calls, "rm-concurrency", group,
              "calls of an async reward function that one process has under way at once")
      .at_least(1)
      .at_most(base::kMaxCount)
      .at_most(4096)
      .does_not_affect_results();
  options
      .option(
          limits.deadline_s, "rm-timeout", group,
          "seconds that a call of the reward may take for each of its samples: it has one sample, or a group of them")
      .greater_than(0)
      .does_not_affect_results();
  options.option(limits.memory_bytes, "rm-memory-bytes", group, "memory limit of each process that computes rewards")
      .at_least(64 << 20)
      .does_not_affect_results();
  options
      .option(
          sandbox, "rm-sandbox", group,
          "keep reward code from network, secrets and writing outside a scratch folder: auto (as far as this machine "
          "can), require (refuse a machine that cannot) or off")
      .one_of({"auto", "require", "off"})
      .does_not_affect_results();
  options.option(failure_reward, "rm-failure-reward", group,
                 "what a sample gets whose reward raised, hung, crashed or was no number: lowest (of a built-in reward "
                 "its lowest; of a function 0, or the rollout's lowest reward if that is below 0), drop (the sample "
                 "is left out) or a number. Faults of the machine always drop it");
}

void RewardOptions::check() const {
  TANDEM_USER_CHECK(given(),
                    fmt::format("no reward: give --rm-type {}, or --custom-rm-path FILE.py:function", rule_names()));
  TANDEM_USER_CHECK(!rm_type || custom_rm_path.empty(), "--rm-type and --custom-rm-path are both given; leave one out");
  check_key("--reward-key", reward_key);
  failure();
}

void RewardOptions::check_key(const std::string& flag, const std::string& key) const {
  if (!rm_type || key.empty()) return;
  const std::span<const std::string_view> keys = find_rule(*rm_type).keys;
  TANDEM_USER_CHECK(std::ranges::find(keys, key) != keys.end(),
                    fmt::format("{} {}: --rm-type {} {}; leave it out", flag, key, *rm_type,
                                keys.empty() ? "gives one number, without keys"
                                             : fmt::format("has the numbers {}", fmt::join(keys, " and "))));
}

std::string RewardOptions::name() const {
  return rm_type ? "--rm-type " + *rm_type : "--custom-rm-path " + custom_rm_path;
}

std::optional<double> RewardOptions::lowest_reward() const {
  if (!rm_type || !reward_key.empty()) return std::nullopt;
  return find_rule(*rm_type).lowest_reward;
}

FailureReward RewardOptions::failure() const {
  if (failure_reward == "drop") return {.drops = true, .reward = std::nullopt};
  if (failure_reward == "lowest") return {.drops = false, .reward = lowest_reward()};
  return {.drops = false, .reward = finite_number(failure_reward)};
}

DataOptions RewardOptions::data(DataOptions base) const {
  if (rm_type) base.lines.label_needed_by = name();
  return base;
}

}  // namespace tandem::config
