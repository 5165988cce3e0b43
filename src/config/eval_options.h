// Declares the options of evaluation: the data sets that a policy is evaluated on, and how. Sampling options that are
// not given are those of the rollout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/data_options.h"
#include "config/rollout_options.h"
#include "options/options.h"

namespace tandem::config {

struct EvalOptions {
  std::vector<std::string> eval_prompt_data;  // NAME PATH NAME PATH ...
  std::string eval_config;                    // file of data sets with options of their own (config/eval_set.h)
  int64_t n_samples_per_eval_prompt = 1;
  std::optional<double> temperature, top_p;
  std::optional<int64_t> top_k, max_response_len, max_prompt_len, max_context_len;
  std::optional<std::string> input_key, label_key, reward_key;

  void visit(options::Options& options);
  void visit_data_sets(options::Options& options);  // declares --eval-prompt-data alone

  // Returns whether there is anything to evaluate on. Throws UserError if both ways to give it are used.
  bool given() const;
  // Returns NAME and PATH of each data set. Throws UserError for an odd count, a name twice, or a name that cannot be
  // part of a file's.
  std::vector<std::pair<std::string, std::string>> data_sets() const;
  // These return the rollout's and the data's options, with the values given here in their place; `path` is the data
  // set's file.
  RolloutOptions rollout(RolloutOptions base) const;
  DataOptions data(DataOptions base, const std::string& path) const;
};

// Returns whether a data set's name can be part of a metric's and of a file's: letters, digits, _ - .
bool is_set_name(const std::string& name);

}  // namespace tandem::config
