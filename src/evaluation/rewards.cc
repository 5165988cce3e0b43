#include "evaluation/rewards.h"

#include <algorithm>
#include <utility>

namespace tandem::evaluation {

EvaluationRewards::EvaluationRewards(const Evaluation& evaluation, const session::RewardContext& context) {
  start(evaluation, context, {});
}

EvaluationRewards::EvaluationRewards(const Evaluation& evaluation, const session::RewardContext& context,
                                     const Evaluation::Grading& training, reward::Scorer& of_training) {
  start(evaluation, context, {{training, &of_training}});
}

void EvaluationRewards::start(const Evaluation& evaluation, const session::RewardContext& context, Known known) {
  for (const Evaluation::Grading& grading : evaluation.gradings()) {
    const auto is_same = [&](const auto& entry) { return entry.first == grading; };
    auto found = std::ranges::find_if(known, is_same);
    if (found == known.end()) {
      known.emplace_back(grading, &own_.emplace_back(grading.scorer(context)));
      found = std::prev(known.end());
    }
    of_sets_.push_back(found->second);
  }
}

Rewards::Rewards(const config::RewardOptions& options, const config::DynamicSamplingOptions& dynamic_sampling,
                 const session::RewardContext& context, const Evaluation& evaluation,
                 const std::optional<reward::GeneratorConfig>& generation)
    : training_(std::in_place, session::scorer_config(evaluation.reward_of_run(options), context)) {
  const Evaluation::Grading of_run = {.reward = options, .label_key = context.label_key};
  of_evaluation_ = evaluation_.emplace(evaluation, context, of_run, *training_).of_sets();
  if (generation) generators_ = std::make_unique<reward::Generators>(*generation);
  if (dynamic_sampling.is_on()) filter_.emplace(dynamic_sampling, options, context);
}

Rewards::Rewards(const Evaluation& evaluation) : of_evaluation_(evaluation.gradings().size(), nullptr) {}

}  // namespace tandem::evaluation
