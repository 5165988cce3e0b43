// The data sets that a policy is evaluated on, and one evaluation: the same code while training and in `tandem eval`.
// Every evaluation draws from the same random streams, so that two policies are compared on equal luck.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "config/eval_options.h"
#include "config/eval_set.h"
#include "model/config.h"
#include "sampling/rollout_phase.h"
#include "session/grader_setup.h"
#include "session/prompt_set.h"

namespace tandem::sampling {

class Evaluation {
 public:
  // Loads the data sets. The options are the rollout's; what --eval-* flags say takes their place.
  Evaluation(const config::EvalOptions& eval, const config::RolloutOptions& rollout, const config::DataOptions& data,
             const config::RewardOptions& reward, text::TextWorker& text);

  // For a process that grades what others evaluate: reads no data. `line_types`: of the whole one.
  Evaluation(const config::EvalOptions& eval, const config::DataOptions& data, const config::RewardOptions& reward,
             const std::set<std::string>& line_types);

  // The rewards that lines of its data ask for themselves.
  const std::set<std::string>& line_types() const { return line_types_; }
  bool empty() const { return sets_.empty(); }
  bool is_rendered() const;       // the chat template rendered prompts of a data set
  int64_t max_sequences() const;  // that one data set decodes, at most
  // Tokens of the longest sequence, prompt and completion. UserError where lengths contradict each other or the model.
  int64_t context_tokens(const model::ModelConfig& model) const;

  // What grades a data set.
  struct Grading {
    config::RewardOptions reward;
    std::string label_key;

    bool operator==(const Grading& other) const;
    // The scorer of the run's context, but for the label key.
    reward::ScorerConfig scorer(session::RewardContext context) const;
  };
  // Of each data set.
  std::vector<Grading> gradings() const;
  // Of the data sets that are graded so.
  std::vector<const session::PromptSet*> prompts_graded(const Grading& grading) const;
  // Tries out the rewards that are not training's, where there is training. UserError.
  void try_out(const std::optional<Grading>& training, const session::RewardContext& context) const;
  // The reward of training, whose processes may serve data sets too: with what the lines of all of them ask for.
  config::RewardOptions reward_of_run(config::RewardOptions training) const;
  // UserError for --rm-url that neither training nor a data set asks.
  void check_url_is_asked(const config::RewardOptions& training) const;

  // A metric that --save-best may name.
  struct RewardMetric {
    std::string name;
    std::string judged_by;  // of pass@k: config::RewardOptions::pass_text(); "" of a mean reward
  };
  // As far as they are known beforehand.
  std::vector<RewardMetric> reward_metrics() const;

  struct Result {
    std::string name;
    Rollout rollout;
    // "eval/NAME", "eval/NAME-pass@1", "eval/NAME/response_len/mean", ...: all of them over the samples that have a
    // reward. Where none has one, only the numbers of failures.
    report::Metrics metrics;
    // says why pass@k may stay 0: no value of a user's reward has passed, although they differ. "" otherwise.
    std::string pass_doubt;

    bool is_scored() const { return !rollout.all_failed(); }
  };
  // Returns "eval NAME" of one data set.
  std::string title(size_t set) const { return "eval " + sets_[set].name; }
  // Samples and scores every data set. The results number each set's samples and groups from 0. `graders` has one entry
  // a set; `generation` is the user's function that makes samples, if there is one. Returns nullopt if the run was
  // asked to stop.
  std::optional<std::vector<Result>> run(RolloutPhase& phase, const std::vector<reward::Scorer*>& graders,
                                         const std::optional<CustomGeneration>& generation,
                                         report::Report& report) const;

 private:
  struct DataSet {
    std::string name;
    config::RolloutOptions rollout;
    Grading grading;
    session::PromptSet prompts;
  };
  std::vector<DataSet> sets_;
  std::set<std::string> line_types_;  // the rewards that their lines ask for themselves
};

// One line for people: "eval math: reward 0.41  pass@1 0.41  length 210  truncated 0.02  (500 samples)". With failures:
// "(498 of 500 samples, 12 failed in grading, 2 of them left out)". Only of one that is scored.
std::string eval_line(const Evaluation::Result& result);
// Why one that is not scored has no number.
std::string unscored_line(const Evaluation::Result& result);

}  // namespace tandem::sampling
