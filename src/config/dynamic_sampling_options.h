// Declares the options of dynamic sampling (DAPO, Yu et al. 2025, section 3.2): which groups of a rollout are trained
// on. docs/SAMPLING.md describes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "options/options.h"

namespace tandem::config {

struct DynamicSamplingOptions {
  std::string filter_path;                         // "": every group is trained on
  std::optional<int64_t> max_sampled_groups = {};  // limit for one rollout
  std::string on_too_few_groups = "train";

  void visit(options::Options& options);
  // Throws UserError for a filter that is neither built in nor FILE.py:function, and for too few groups in all.
  void check(int64_t rollout_batch_size) const;

  bool stops_when_too_few() const { return on_too_few_groups == "stop"; }
  bool is_on() const { return !filter_path.empty(); }
  // Returns whether the filter drops groups whose rewards are all equal: nonzero_std, or slime's name for it. Else
  // filter_path is a Python function, FILE.py:function.
  bool is_built_in() const;
  // Returns the filter as a checkpoint remembers it: "nonzero_std" for each name of the built-in one, or
  // FILE.py:function.
  std::string name() const;
};

}  // namespace tandem::config
