// What scores a completion.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/options.h"
#include "config/data_options.h"
#include "reward/grader_limits.h"

namespace tandem::config {

// The reward of a sample whose grading failed.
struct FailureReward {
  bool drops = false;            // the sample has no reward and is left out
  std::optional<double> reward;  // unset: the lowest reward of its group, or 0 if all are above
};

// When a sample passes, for pass@k: by the value of one reward, before its weight.
struct PassRule {
  std::string reward;  // its name, RewardOptions::Source::name
  double threshold = 1.0;

  // From the threshold on. A sum such as 0.7 + 0.2 + 0.1, which is 0.9999999999999999, reaches 1.
  bool passes(double value) const { return value >= threshold - 1e-6; }
  std::string text() const;  // "exact >= 1"
};

struct RewardOptions {
  std::vector<std::string> rm_type;
  std::vector<std::string> custom_rm_path;
  std::vector<double> reward_weights;
  std::string rm_url;
  int64_t rm_retries = 4;
  std::string reward_key;
  bool group_rm = false;
  std::string python;
  std::vector<std::string> env;
  reward::GraderLimits limits;
  std::string sandbox = "auto";
  std::string failure_reward = "lowest";
  std::string pass_reward;  // "": the first
  double pass_threshold = 1.0;

  // No flag: the rewards that lines of the data ask for themselves (metadata.rm_type), once they are read.
  std::set<std::string> line_types;

  void visit(base::Options& options);
  bool given() const { return !rm_type.empty() || !custom_rm_path.empty() || !rm_url.empty(); }
  // UserError for weights that are not as many as the rewards, a service without an address or an address that is none,
  // a key that no built-in reward has, a pass_reward that is none of the rewards, and for failure()'s.
  void check() const;
  void check_key(const std::string& flag, const std::string& key) const;
  // UserError for an address that neither a flag nor line_types asks.
  void check_url_is_asked() const;
  // "--rm-type exact", "--rm-type exact --custom-rm-path FILE.py:function": as the user gave it.
  std::string name() const;

  // A reward of the sum: built in (rm_type) or a function. Those of --rm-type come first.
  struct Source {
    std::string name;            // no other source has it
    std::string rm_type;         // empty: a function, or built in with no name but those of the lines
    std::string custom_rm_path;  // empty: built in
    double weight = 1.0;
  };
  std::vector<Source> sources() const;
  // Whether samples and metrics show what each source gave.
  bool is_sum() const { return sources().size() > 1 || !reward_weights.empty(); }
  // "rewards: 1 x exact + 0.5 x brevity"; "" of one reward without a weight.
  std::string sum_text() const;
  // The built-in rewards that this source may be asked for: its own first, then those of lines.
  std::vector<std::string> rules_of(const Source& source) const;

  // The lowest reward that built-in ones give; a function, or another number of a reward that is a dict, may be
  // anything.
  std::optional<double> lowest_reward() const;
  // What pass@k counts.
  PassRule pass_rule() const;
  // pass_rule().text() where somebody who reads pass@k cannot guess it; "" where it is one reward's value of 1.
  std::string pass_text() const;
  // Nothing is known beforehand of the values that pass@k counts: a function or a service gives them.
  bool is_pass_unknown() const { return !lowest_of(pass_source()); }
  // UserError where pass@k would be the same whatever is sampled: no value of a built-in reward reaches the threshold,
  // or each does. Of a function and of a service nothing is known. Asked once line_types are known.
  void check_some_pass() const;
  // What --rm-failure-reward comes to. UserError for a word that it is not.
  FailureReward failure() const;
  // `base`, whose lines must have the label that this reward compares with, and may name a reward of their own where
  // that takes the place of --rm-type.
  DataOptions data(DataOptions base) const;

 private:
  // --rm-type; without any reward, remote_rm where there is --rm-url.
  std::vector<std::string> rm_types() const;
  std::optional<double> lowest_of(const Source& source) const;
  Source pass_source() const;
};

}  // namespace tandem::config
