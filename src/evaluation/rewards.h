// The processes that run the user's code, as the flags ask for them: graders of training and of data sets of an
// evaluation that are graded otherwise, the process of a group filter, and those of a generate function.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/dynamic_sampling_options.h"
#include "config/reward_options.h"
#include "evaluation/evaluation.h"
#include "groups/group_filter.h"
#include "reward/generators.h"
#include "reward/scorer.h"
#include "session/grader_setup.h"

namespace tandem::evaluation {

// Owns the graders of an evaluation. Data sets that are graded alike share them.
class EvaluationRewards {
 public:
  // Starts the processes. Throws UserError for a reward that cannot be used.
  EvaluationRewards(const Evaluation& evaluation, const session::RewardContext& context);
  // Does the same, but data sets that are graded as training is are served by its graders, which are borrowed.
  EvaluationRewards(const Evaluation& evaluation, const session::RewardContext& context,
                    const Evaluation::Grading& training, reward::Scorer& of_training);

  const std::vector<reward::Scorer*>& of_sets() const { return of_sets_; }

 private:
  using Known = std::vector<std::pair<Evaluation::Grading, reward::Scorer*>>;
  void start(const Evaluation& evaluation, const session::RewardContext& context, Known known);

  std::list<reward::Scorer> own_;  // a list, because addresses must stay valid
  std::vector<reward::Scorer*> of_sets_;
};

class Rewards {
 public:
  // Starts the processes, in a process that samples. Throws UserError for a reward or filter that cannot be used.
  // `generation` configures the processes that make samples; it is unset if the engine alone makes them.
  Rewards(const config::RewardOptions& options, const config::DynamicSamplingOptions& dynamic_sampling,
          const session::RewardContext& context, const Evaluation& evaluation,
          const std::optional<reward::GeneratorConfig>& generation = std::nullopt);
  // Starts nothing, in a process that does not sample, or whose engine follows another rank's: everything below is
  // null.
  explicit Rewards(const Evaluation& evaluation);

  reward::Scorer* of_training() { return training_ ? &*training_ : nullptr; }
  const std::vector<reward::Scorer*>& of_evaluation() const { return of_evaluation_; }  // one for each data set
  groups::GroupFilter* filter() { return filter_ ? &*filter_ : nullptr; }  // null: every group is trained on
  reward::Generators* generators() const { return generators_.get(); }     // null: the engine alone makes samples

 private:
  std::optional<reward::Scorer> training_;
  std::optional<EvaluationRewards> evaluation_;
  std::vector<reward::Scorer*> of_evaluation_;
  std::optional<groups::GroupFilter> filter_;
  std::unique_ptr<reward::Generators> generators_;
};

}  // namespace tandem::evaluation
