#include "rollout_worker/served_rollout.h"

#include <vector>

#include "base/check.h"

namespace tandem::rollout_worker {

namespace {

sampling::RolloutRequest request_of(const sampling::Open& open, const WorkerParts& parts) {
  const config::TrainConfig& config = parts.config;
  sampling::RolloutRequest request;
  request.n_samples_per_prompt = open.n_samples_per_prompt;
  request.first_sample_id = open.first_sample_id;
  request.state = open.state;
  request.sampling = open.sampling;
  request.skip_special_tokens = open.skip_special_tokens;
  request.is_graded = open.graded_by != sampling::GradedBy::kNobody;
  request.failure_reward = config.reward.failure();
  if (open.graded_by == sampling::GradedBy::kEvalSet) {
    const std::vector<evaluation::Evaluation::Grading> gradings = parts.evaluation.gradings();
    TANDEM_ENV_CHECK(open.eval_set < std::ssize(gradings), "the run evaluates on a data set that is not in --eval-*");
    request.failure_reward = gradings[static_cast<size_t>(open.eval_set)].reward.failure();
    request.eval_set = open.eval_set;
    request.title = parts.evaluation.title(static_cast<size_t>(open.eval_set));
  }
  if (open.generates) {
    TANDEM_ENV_CHECK(parts.rewards.generators() != nullptr, "the run has a --custom-generate-function-path");
    request.generation = sampling::custom_generation(config.custom_generate, config.data.lines.metadata_key,
                                                     parts.model, parts.rewards.generators(), open.is_evaluation);
  }
  if (open.is_filtered) {
    TANDEM_ENV_CHECK(parts.rewards.filter() != nullptr, "the run has a --dynamic-sampling-filter-path");
    request.dynamic.emplace(sampling::DynamicSampling{
        .filter = parts.rewards.filter(), .filter_name = config.dynamic_sampling.filter_path, .next_prompt = {}});
  }
  return request;
}

reward::Scorer* scorer_of(const sampling::Open& open, evaluation::Rewards& rewards) {
  switch (open.graded_by) {
    case sampling::GradedBy::kNobody: return nullptr;
    case sampling::GradedBy::kTraining: return rewards.of_training();
    case sampling::GradedBy::kEvalSet: break;
  }
  return rewards.of_evaluation().at(static_cast<size_t>(open.eval_set));
}

}  // namespace

ServedRollout::ServedRollout(const sampling::Open& open, const WorkerParts& parts, rollout::Engine& engine,
                             text::TextWorker& text, mesh::Channel& rank0,
                             std::optional<base::Clock::time_point> still_since)
    : number(open.rollout),
      request(request_of(open, parts)),
      sampler(request, engine, text, scorer_of(open, parts.rewards), open.samples_at_once, /*shares=*/true),
      client(rank0, open.rollout, sampler, still_since) {}

}  // namespace tandem::rollout_worker
