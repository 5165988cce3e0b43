// The data sets that a policy is evaluated on, and one evaluation: the same code while training and in `tandem eval`.
// Every evaluation draws from the same random streams, so that two policies are compared on equal luck.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/eval_options.h"
#include "run/prompt_set.h"
#include "run/rewards.h"
#include "run/rollout_phase.h"

namespace tandem::run {

class Evaluation {
 public:
  // Loads the data sets. The options are the rollout's; what --eval-* flags say takes their place.
  Evaluation(const config::EvalOptions& eval, const config::RolloutOptions& rollout, const config::DataOptions& data,
             const config::RewardOptions& reward, text::TextWorker& text);

  bool empty() const { return sets_.empty(); }
  int64_t longest_prompt() const;
  int64_t max_sequences() const;  // that one data set decodes, at most
  const config::RolloutOptions& rollout() const { return rollout_; }

  // Whether its label or reward key differs from training's, so that training's graders cannot serve it.
  bool has_own_keys() const { return has_own_keys_; }
  // The graders that can: those of the run's context, but for the label key.
  text::GraderConfig graders(RewardContext context) const;

  struct Result {
    std::string name;
    Rollout rollout;
    // "eval/NAME", "eval/NAME-pass@1", "eval/NAME/response_len/mean", ...: all of them over the samples that have a
    // reward. Where none has one, only the numbers of failures.
    report::Metrics metrics;

    bool is_scored() const { return !rollout.all_failed(); }
  };
  // Samples and scores every data set. nullopt when the run was asked to stop.
  std::optional<std::vector<Result>> run(RolloutPhase& phase, text::Graders& graders, report::Report& report) const;

 private:
  struct DataSet {
    std::string name;
    PromptSet prompts;
  };
  config::RolloutOptions rollout_;
  config::RewardOptions reward_;
  std::string label_key_;
  bool has_own_keys_ = false;
  std::vector<DataSet> sets_;
};

// One line for people: "eval math: reward 0.41  pass@1 0.41  length 210  truncated 0.02  (500 samples)". With failures:
// "(498 of 500 samples, 12 failed in grading, 2 of them left out)". Only of one that is scored.
std::string eval_line(const Evaluation::Result& result);
// Why one that is not scored has no number.
std::string unscored_line(const Evaluation::Result& result);

}  // namespace tandem::run
