// What scores a completion.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/options.h"
#include "config/data_options.h"
#include "text/grader_limits.h"

namespace tandem::config {

// The reward of a sample whose grading failed.
struct FailureReward {
  bool drops = false;            // the sample has no reward and is left out
  std::optional<double> reward;  // unset: the lowest of the rewards that were graded with it, or 0 if all are above
};

struct RewardOptions {
  std::optional<std::string> rm_type;
  std::string custom_rm_path;
  std::string reward_key;
  bool group_rm = false;
  std::string python;
  text::GraderLimits limits;
  std::string sandbox = "auto";
  std::string failure_reward = "lowest";

  void visit(base::Options& options);
  bool given() const { return rm_type.has_value() || !custom_rm_path.empty(); }
  // UserError unless exactly one of --rm-type and --custom-rm-path is given, for a key that a built-in reward lacks,
  // and for failure()'s.
  void check() const;
  void check_key(const std::string& flag, const std::string& key) const;
  // "--rm-type exact", "--custom-rm-path FILE.py:function": as the user gave it.
  std::string name() const;
  // The lowest reward that a built-in one gives; a function, or another number of a reward that is a dict, may be
  // anything.
  std::optional<double> lowest_reward() const;
  // What --rm-failure-reward comes to. UserError for a word that it is not.
  FailureReward failure() const;
  // `base`, whose lines must have the label that this reward compares with.
  DataOptions data(DataOptions base) const;
};

}  // namespace tandem::config
