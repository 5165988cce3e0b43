// Describes one data set of an evaluation: a pair of --eval-prompt-data, or a table of --eval-config with its own
// options. The keys of the tables are slime's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/data_options.h"
#include "config/eval_options.h"
#include "config/reward_options.h"
#include "options/options.h"

namespace tandem::config {

struct EvalSet {
  std::string name, path;
  EvalOptions options;                               // the flags --eval-*, overridden by the file
  std::vector<std::string> rm_type, custom_rm_path;  // if any is given: a reward of its own, the sum of them all
  std::vector<double> reward_weights;
  std::optional<bool> group_rm;
  std::optional<std::string> pass_reward;
  std::optional<double> pass_threshold;
  std::string place;  // "FILE:LINE:COLUMN" of its table; "": a pair of --eval-prompt-data

  bool names_reward() const { return !rm_type.empty() || !custom_rm_path.empty(); }

  // Declares the keys that [eval.defaults] may have: all but name and path.
  void visit_defaults(options::Options& table);
  void visit(options::Options& table);

  // Returns a copy of these defaults without their reward and what belongs to it, into which a table of the file is
  // read: a table that names a reward does not use the defaults' reward.
  EvalSet without_reward() const;
  // It is called afterwards, and takes the reward of the defaults if this set has named none. Weights and keys that it
  // has named stay. A reward of its own is read by the key of `flags`, not of the defaults.
  void inherit_reward(const EvalSet& defaults, const EvalOptions& flags);

  // Returns the reward of this set: its own, or that of training with the set's reward key. Throws UserError if its own
  // is wrong.
  RewardOptions reward(RewardOptions base) const;
};

}  // namespace tandem::config
