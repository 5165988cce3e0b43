#include "config/reward_options.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "base/check.h"
#include "base/size.h"

namespace tandem::config {

namespace {

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
  options.option(rm_type, "rm-type", group, "built-in reward: exact, math (boxed or last number) or dapo")
      .one_of({"exact", "math", "dapo"});
  options.option(custom_rm_path, "custom-rm-path", group, "FILE.py:function, in the TRL, verl or slime dialect")
      .path()
      .does_not_affect_results();
  options.option(reward_key, "reward-key", group, "number to take when a reward is a dict; unset: score");
  options.option(group_rm, "group-rm", group,
                 "a slime function takes all samples of a group at once (TRL functions always do)");
  options.option(python, "rm-python", group, "interpreter of the reward code, 3.9 or newer; unset: Tandem's own")
      .path();
  options.option(num_workers, "rm-num-workers", group, "processes that score")
      .at_least(1)
      .at_most(base::kMaxCount)
      .at_most(256)
      .does_not_affect_results();
  options
      .option(concurrency, "rm-concurrency", group,
              "calls of an async function that one of these processes has under way at once")
      .at_least(1)
      .at_most(base::kMaxCount)
      .at_most(4096)
      .does_not_affect_results();
  options
      .option(deadline_s, "rm-timeout", group, "seconds for each sample of a call, which holds one sample or one group")
      .greater_than(0)
      .does_not_affect_results();
  options.option(memory_bytes, "rm-memory-bytes", group, "memory limit of each scoring process")
      .at_least(64 << 20)
      .does_not_affect_results();
  options
      .option(sandbox, "rm-sandbox", group,
              "no network, secrets or writing outside a scratch folder for reward code: auto (as far as this machine "
              "can), require (refuse a machine that cannot) or off")
      .one_of({"auto", "require", "off"})
      .does_not_affect_results();
  options.option(failure_reward, "rm-failure-reward", group,
                 "what a sample gets whose reward raised, hung, crashed or was no number: lowest (of a built-in reward "
                 "its lowest; of a function 0, or the rollout's lowest reward if that is below 0), drop (the sample "
                 "is left out) or a number. Faults of the machine always drop it");
}

void RewardOptions::check() const {
  TANDEM_USER_CHECK(given(), "no reward: give --rm-type exact, math or dapo, or --custom-rm-path FILE.py:function");
  TANDEM_USER_CHECK(!rm_type || custom_rm_path.empty(), "--rm-type and --custom-rm-path are both given; leave one out");
  check_key("--reward-key", reward_key);
  failure();
}

void RewardOptions::check_key(const std::string& flag, const std::string& key) const {
  if (!rm_type || key.empty()) return;
  const bool is_known = *rm_type == "dapo" && (key == "score" || key == "acc");
  TANDEM_USER_CHECK(
      is_known, fmt::format("{} {}: --rm-type {} {}; leave it out", flag, key, *rm_type,
                            *rm_type == "dapo" ? "has the numbers score and acc" : "gives one number, without keys"));
}

std::string RewardOptions::name() const {
  return rm_type ? "--rm-type " + *rm_type : "--custom-rm-path " + custom_rm_path;
}

std::optional<double> RewardOptions::lowest_reward() const {
  if (!rm_type || !reward_key.empty()) return std::nullopt;
  return *rm_type == "dapo" ? -1.0 : 0.0;
}

FailureReward RewardOptions::failure() const {
  if (failure_reward == "drop") return {.drops = true, .reward = std::nullopt};
  if (failure_reward == "lowest") return {.drops = false, .reward = lowest_reward()};
  return {.drops = false, .reward = finite_number(failure_reward)};
}

DataOptions RewardOptions::data(DataOptions base) const {
  if (rm_type) base.label_needed_by = name();
  return base;
}

}  // namespace tandem::config
