// The data sets that a policy is evaluated on, and one evaluation: the same code while training and in `tandem eval`.
// Every evaluation draws from the same random streams, so that two policies are compared on equal luck.
#pragma once

#include <cstdint>
#include <functional>
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

namespace tandem::evaluation {

class Evaluation {
 public:
  // Loads the data sets. The rollout's options hold wherever no --eval-* flag says otherwise.
  Evaluation(const config::EvalOptions& eval, const config::RolloutOptions& rollout, const config::DataOptions& data,
             const config::RewardOptions& reward, text::TextWorker& text);

  // Reads no data: this is for a process that grades what others evaluate. `line_types` are the line_types() of the
  // Evaluation that has read the data.
  Evaluation(const config::EvalOptions& eval, const config::DataOptions& data, const config::RewardOptions& reward,
             const std::set<std::string>& line_types);

  // Returns the rewards that lines of its data ask for themselves.
  const std::set<std::string>& line_types() const { return line_types_; }
  bool empty() const { return sets_.empty(); }
  bool is_rendered() const;       // whether the chat template rendered prompts of a data set
  int64_t max_sequences() const;  // most sequences that one data set decodes
  // Returns the tokens of the longest sequence, prompt and completion. Throws UserError if lengths contradict each
  // other or the model.
  int64_t context_tokens(const model::ModelConfig& model) const;

  // The reward options and the label key by which a data set is graded.
  struct Grading {
    config::RewardOptions reward;
    std::string label_key;

    bool operator==(const Grading& other) const;
    // Returns the configuration of the scorer in the run's context, with this label key in place of the context's.
    reward::ScorerConfig scorer(session::RewardContext context) const;
  };
  // Returns how each data set is graded, in their order.
  std::vector<Grading> gradings() const;
  // Returns the prompts of the data sets that are graded so.
  std::vector<const session::PromptSet*> prompts_graded(const Grading& grading) const;
  // Tries out the rewards that training does not have; `training` is unset where nothing is trained. Throws UserError
  // if one cannot be used.
  void try_out(const std::optional<Grading>& training, const session::RewardContext& context) const;
  // Returns the reward of training extended by what the lines of all data sets ask for, since its processes may serve
  // data sets too.
  config::RewardOptions reward_of_run(config::RewardOptions training) const;
  // Throws UserError for --rm-url if neither training nor a data set uses it.
  void check_url_is_asked(const config::RewardOptions& training) const;

  // A metric that --save-best may name.
  struct RewardMetric {
    std::string name;
    std::string judged_by;  // config::RewardOptions::pass_text() for pass@k; "" for a mean reward
    std::string asked;      // what is sampled and how, of which two values can only be compared if it is the same
  };
  // Returns the metrics that are known before the first evaluation.
  std::vector<RewardMetric> reward_metrics() const;

  struct Result {
    std::string name;
    sampling::Rollout rollout;
    // "eval/NAME", "eval/NAME-pass@1", "eval/NAME/response_len/mean", ...: all of them are over the samples that have a
    // reward. If none has one, there are only the numbers of failures.
    report::Metrics metrics;
    // Says why pass@k may stay 0: no value of a user's reward has passed, although they differ. "" otherwise.
    std::string pass_doubt;

    bool is_scored() const { return !rollout.all_failed(); }
  };
  // Returns "eval NAME" for one data set.
  std::string title(size_t set) const { return "eval " + sets_[set].name; }
  // Adds the scores of a reward model to the samples of a data set, which are made of these prompts and rewarded as the
  // options say.
  using Judge = std::function<void(const config::RewardOptions&, const session::PromptSet&, sampling::Rollout&)>;
  // Samples and scores every data set. The results number each set's samples and groups from 0. `graders` has one entry
  // for each set; `generation` is the user's function that makes samples, if there is one. `judge` is called for each
  // set whose rewards have a model, once all sets are sampled. Returns nullopt if the run was asked to stop.
  std::optional<std::vector<Result>> run(sampling::RolloutPhase& phase, const std::vector<reward::Scorer*>& graders,
                                         const std::optional<sampling::CustomGeneration>& generation,
                                         const Judge& judge, report::Report& report) const;

 private:
  struct DataSet {
    std::string name;
    config::RolloutOptions rollout;
    Grading grading;
    session::PromptSet prompts;
    std::string path;  // as it was given
  };
  std::vector<DataSet> sets_;
  std::set<std::string> line_types_;  // rewards that their lines ask for themselves
};

// Returns one line for people: "eval math: reward 0.41  pass@1 0.41  length 210  truncated 0.02  (500 samples)". With
// failures it ends in "(498 of 500 samples, 12 failed in grading, 2 of them left out)"; samples to which the reward
// does not apply are counted as ", 3 without a reward". The result must be scored.
std::string eval_line(const Evaluation::Result& result);
// Returns a line that says why a result that is not scored has no number.
std::string unscored_line(const Evaluation::Result& result);

}  // namespace tandem::evaluation
