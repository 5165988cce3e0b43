// Declares the options of the rewards, which score completions.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/data_options.h"
#include "options/options.h"
#include "reward/grader_limits.h"

namespace tandem::config {

// Says which reward a sample gets whose grading failed.
struct FailureReward {
  bool drops = false;            // the sample has no reward and is left out
  std::optional<double> reward;  // unset: the lowest reward of its group, or 0 if all are above
};

// States the rule by which a sample passes, for pass@k: one reward's value, before its weight, reaches a threshold.
struct PassRule {
  std::string reward;  // name of the reward, RewardOptions::Source::name
  double threshold = 1.0;

  // Returns whether the value reaches the threshold. A sum such as 0.7 + 0.2 + 0.1, which is 0.9999999999999999,
  // reaches 1.
  bool passes(double value) const { return value >= threshold - 1e-6; }
  std::string text() const;  // "exact >= 1"
};

struct RewardOptions {
  std::vector<std::string> rm_type;
  std::vector<std::string> custom_rm_path;
  std::string rm_model;  // directory of the reward model; "": none
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

  // The rewards that lines of the data ask for (metadata.rm_type), once they are read. This is no flag.
  std::set<std::string> line_types;

  void visit(options::Options& options);
  bool given() const { return !rm_type.empty() || !custom_rm_path.empty() || !rm_url.empty() || !rm_model.empty(); }
  // Throws UserError for another number of weights than of rewards, a service without an address or with an invalid
  // one, a key that no built-in reward has, a pass_reward that is none of the rewards, and for failure()'s errors.
  void check() const;
  void check_key(const std::string& flag, const std::string& key) const;
  // Throws UserError for an address that neither a flag nor line_types uses.
  void check_url_is_asked() const;
  // Returns the rewards as the user gave them: "--rm-type exact", "--rm-type exact --custom-rm-path FILE.py:function".
  std::string name() const;

  // Describes a reward of the sum: built in (rm_type), a function, or the reward model. They come in this order.
  struct Source {
    std::string name;            // unique among the sources
    std::string rm_type;         // empty: a function, or a built-in that only lines name
    std::string custom_rm_path;  // empty: built in, or the reward model
    double weight = 1.0;
    bool is_model = false;  // --rm-model, which scores whole rollouts (run/learning/reward_model.h)
  };
  std::vector<Source> sources() const;
  // Returns whether samples and metrics show the value of each source.
  bool is_sum() const { return sources().size() > 1 || !reward_weights.empty() || !rm_model.empty(); }
  // Returns "rewards: 1 x exact + 0.5 x brevity"; "" for one reward without a weight that is no model's.
  std::string sum_text() const;
  // Returns the built-in rewards that this source may be asked for: its own first, then those of lines.
  std::vector<std::string> rules_of(const Source& source) const;

  // Returns the lowest value of built-in rewards; nullopt for a function, or for another number of a reward that is a
  // dict, which may be anything.
  std::optional<double> lowest_reward() const;
  // Returns the rule of pass@k.
  PassRule pass_rule() const;
  // Returns pass_rule().text() if a reader of pass@k cannot guess it; "" if it is one reward's value of 1.
  std::string pass_text() const;
  // Returns whether nothing is known beforehand of the values that pass@k counts: a function or a service gives them.
  bool is_pass_unknown() const { return !lowest_of(pass_source()); }
  // Throws UserError if pass@k would not depend on the samples: no value of a built-in reward reaches the threshold, or
  // each does. The values of a function or a service are unknown. It is called once line_types are known.
  void check_some_pass() const;
  // Parses --rm-failure-reward. Throws UserError for any other word.
  FailureReward failure() const;
  // Returns `base` with the requirements of this reward: lines must have the label that it compares with, and may name
  // a reward of their own if that replaces --rm-type.
  DataOptions data(DataOptions base) const;

 private:
  // Returns --rm-type; without any reward, remote_rm if there is --rm-url.
  std::vector<std::string> rm_types() const;
  std::optional<double> lowest_of(const Source& source) const;
  Source pass_source() const;
};

}  // namespace tandem::config
