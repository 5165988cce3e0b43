// The built-in rewards, by the names that --rm-type and a line's metadata.rm_type have for them.
// python/tandem_worker/rules.py computes them.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::reward {

struct RewardRule {
  std::string_view name;
  double lowest_reward;                    // the lowest that it gives; the highest of each is 1
  bool needs_label;                        // each line must have one: a text, a number, true or false
  std::span<const std::string_view> keys;  // names of its numbers, where it gives several: the first is the reward
};

inline constexpr std::array<std::string_view, 2> kDapoKeys = {"score", "acc"};
inline constexpr std::array<RewardRule, 7> kRewardRules = {{
    {"exact", 0.0, true, {}},
    {"math", 0.0, true, {}},
    {"dapo", -1.0, true, kDapoKeys},
    {"deepscaler", 0.0, true, {}},
    {"f1", 0.0, true, {}},
    {"gpqa", 0.0, false, {}},  // the line's metadata may say which letter is right
    {"random", 0.0, false, {}},
}};
inline constexpr double kHighestReward = 1.0;

// boxed_RULE is the rule for what the last \boxed{...} of the response holds.
inline constexpr std::string_view kBoxed = "boxed_";
// A service computes this one: --rm-url.
inline constexpr std::string_view kRemoteRule = "remote_rm";

// Returns the rule of a name, with the prefix boxed_ or without; null for other names and for remote_rm.
inline const RewardRule* find_rule(std::string_view name) {
  if (name.starts_with(kBoxed)) name.remove_prefix(kBoxed.size());
  const auto* const rule = std::ranges::find(kRewardRules, name, &RewardRule::name);
  return rule == kRewardRules.end() ? nullptr : rule;
}

// Returns all that --rm-type may be.
inline std::vector<std::string> rule_names() {
  std::vector<std::string> names;
  for (const RewardRule& rule : kRewardRules) names.emplace_back(rule.name);
  names.emplace_back(kRemoteRule);
  for (const RewardRule& rule : kRewardRules) names.push_back(std::string(kBoxed) + std::string(rule.name));
  return names;
}

}  // namespace tandem::reward
