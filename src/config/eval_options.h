// Which data sets a policy is evaluated on, and how. Sampling options that are not given are those of the rollout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/options.h"
#include "config/data_options.h"
#include "config/rollout_options.h"

namespace tandem::config {

struct EvalOptions {
  std::vector<std::string> eval_prompt_data;  // NAME PATH NAME PATH ...
  std::string eval_config;                    // a file of data sets with options of their own (config/eval_set.h)
  int64_t n_samples_per_eval_prompt = 1;
  std::optional<double> temperature, top_p;
  std::optional<int64_t> top_k, max_response_len, max_prompt_len, max_context_len;
  std::optional<std::string> input_key, label_key, reward_key;

  void visit(base::Options& options);
  void visit_data_sets(base::Options& options);  // --eval-prompt-data alone

  // Whether there is anything to evaluate on. UserError for both ways to say it at once.
  bool given() const;
  // NAME and PATH of each data set. UserError for an odd count, a name twice, or a name that cannot be part of a
  // file's.
  std::vector<std::pair<std::string, std::string>> data_sets() const;
  // The rollout's options and the data's with what is given here in their place; `path` is the data set's file.
  RolloutOptions rollout(RolloutOptions base) const;
  DataOptions data(DataOptions base, const std::string& path) const;
};

// Whether a data set's name can be part of a metric's and of a file's: letters, digits, _ - .
bool is_set_name(const std::string& name);

}  // namespace tandem::config
