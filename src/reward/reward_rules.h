// The built-in rewards, by the names that --rm-type and a line's metadata.rm_type have for them.
// python/tandem_worker/rules/rules.py computes them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::reward {

// The label that each line must have for a rule. kScalar: a text, a number, true or false; kTests: a text, a list or an
// object that holds tests.
enum class LabelKind : uint8_t { kNone, kScalar, kTests };

struct RewardRule {
  std::string_view name;
  double lowest_reward;  // the lowest that it gives; the highest of each is 1
  LabelKind label;
  std::span<const std::string_view> keys;  // names of its numbers, where it gives several: the first is the reward
  bool checks_lines = false;  // a line that it cannot read fails with every response, so it is refused at the start
};

inline constexpr std::array<std::string_view, 2> kDapoKeys = {"score", "acc"};
inline constexpr std::array<std::string_view, 2> kCodeKeys = {"score", "passed"};
inline constexpr std::array<std::string_view, 4> kIfbenchKeys = {"score", "followed", "loose", "loose_followed"};
inline constexpr std::array<RewardRule, 10> kRewardRules = {{
    {"exact", 0.0, LabelKind::kScalar, {}},
    {"math", 0.0, LabelKind::kScalar, {}},
    {"dapo", -1.0, LabelKind::kScalar, kDapoKeys},
    {"deepscaler", 0.0, LabelKind::kScalar, {}},
    {"f1", 0.0, LabelKind::kScalar, {}},
    {"gpqa", 0.0, LabelKind::kNone, {}},  // the line's metadata may say which letter is right
    {"random", 0.0, LabelKind::kNone, {}},
    {"none", 0.0, LabelKind::kNone, {}},
    {"code", 0.0, LabelKind::kTests, kCodeKeys, /*checks_lines=*/true},
    {"ifbench", 0.0, LabelKind::kNone, kIfbenchKeys, /*checks_lines=*/true},
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
  for (const RewardRule& rule : kRewardRules) {  // no box holds a program, or a text that follows instructions
    if (rule.label != LabelKind::kTests && !rule.checks_lines && rule.name != "none")
      names.push_back(std::string(kBoxed) + std::string(rule.name));
  }
  return names;
}

}  // namespace tandem::reward
