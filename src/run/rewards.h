// The processes that run the user's code, as the flags ask for them: those that score completions, of training and of
// data sets of an evaluation that are graded otherwise, that of a group filter, and those of a generate function.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/dynamic_sampling_options.h"
#include "config/reward_options.h"
#include "run/evaluation.h"
#include "run/grader_setup.h"
#include "run/group_filter.h"
#include "text/generators.h"
#include "text/scorer.h"

namespace tandem::run {

// Those of an evaluation. Data sets that are graded alike share them.
class EvaluationRewards {
 public:
  // Starts the processes. UserError for a reward that cannot be used.
  EvaluationRewards(const Evaluation& evaluation, const RewardContext& context);
  // The same, but sets that are graded as training is are served by its graders, which are borrowed.
  EvaluationRewards(const Evaluation& evaluation, const RewardContext& context, const Evaluation::Grading& training,
                    text::Scorer& of_training);

  const std::vector<text::Scorer*>& of_sets() const { return of_sets_; }

 private:
  using Known = std::vector<std::pair<Evaluation::Grading, text::Scorer*>>;
  void start(const Evaluation& evaluation, const RewardContext& context, Known known);

  std::list<text::Scorer> own_;  // whose addresses stay
  std::vector<text::Scorer*> of_sets_;
};

class Rewards {
 public:
  // Of a process that samples: starts the processes. UserError for a reward or filter that cannot be used.
  // `generation`: of the processes that make samples, where the engine alone does not.
  Rewards(const config::RewardOptions& options, const config::DynamicSamplingOptions& dynamic_sampling,
          const RewardContext& context, const Evaluation& evaluation,
          const std::optional<text::GeneratorConfig>& generation = std::nullopt);
  // Of a process that does not sample, or draws what another one does: starts none, and there is nothing of what follows (null).
  explicit Rewards(const Evaluation& evaluation);

  text::Scorer* of_training() { return training_ ? &*training_ : nullptr; }
  const std::vector<text::Scorer*>& of_evaluation() const { return of_evaluation_; }  // of each data set
  GroupFilter* filter() { return filter_ ? &*filter_ : nullptr; }                     // null: every group is trained on
  text::Generators* generators() const { return generators_.get(); }  // null: the engine alone makes samples

 private:
  std::optional<text::Scorer> training_;
  std::optional<EvaluationRewards> evaluation_;
  std::vector<text::Scorer*> of_evaluation_;
  std::optional<GroupFilter> filter_;
  std::unique_ptr<text::Generators> generators_;
};

}  // namespace tandem::run
