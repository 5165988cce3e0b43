// The built-in rewards, by the names that --rm-type has for them. python/tandem_worker/rewards.py computes them.
#pragma once

#include <array>
#include <span>
#include <string_view>

namespace tandem::text {

struct RewardRule {
  std::string_view name;
  double lowest_reward;                    // the lowest that it gives
  std::span<const std::string_view> keys;  // of its numbers, where it gives several: the first is the reward
};

inline constexpr std::array<std::string_view, 2> kDapoKeys = {"score", "acc"};
inline constexpr std::array<RewardRule, 3> kRewardRules = {{
    {"exact", 0.0, {}},
    {"math", 0.0, {}},
    {"dapo", -1.0, kDapoKeys},
}};

}  // namespace tandem::text
