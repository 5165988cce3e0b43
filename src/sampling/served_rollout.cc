#include "sampling/served_rollout.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace tandem::sampling {

ServedRollout::ServedRollout(const Open& open, const WorkerParts& parts)
    : open_(open),
      parts_(parts),
      request_(request()),
      work_(std::make_unique<LocalGroupWork>(
          request_, parts.engine, parts.text, scorer(),
          [this](size_t index, GradedGroup group) { done_.groups.emplace(index, std::move(group)); })) {}

void ServedRollout::close() {
  const bool is_cut = has_work();
  for (const auto& [index, line] : lines_) work_->abort(index);
  work_->finish();
  if (is_cut && scorer() != nullptr) scorer()->discard();
}

RolloutRequest ServedRollout::request() const {
  const config::TrainConfig& config = parts_.config;
  RolloutRequest request;
  request.n_samples_per_prompt = open_.n_samples_per_prompt;
  request.first_sample_id = open_.first_sample_id;
  request.sampling = open_.sampling;
  request.skip_special_tokens = open_.skip_special_tokens;
  request.is_graded = open_.graded_by != GradedBy::kNobody;
  request.failure_reward = config.reward.failure();
  if (open_.graded_by == GradedBy::kEvalSet) {
    const std::vector<Evaluation::Grading> gradings = parts_.evaluation.gradings();
    TANDEM_ENV_CHECK(open_.eval_set < std::ssize(gradings), "the run evaluates on a data set that is not in --eval-*");
    request.failure_reward = gradings[static_cast<size_t>(open_.eval_set)].reward.failure();
    request.eval_set = open_.eval_set;
    request.title = parts_.evaluation.title(static_cast<size_t>(open_.eval_set));
  }
  if (open_.generates) {
    TANDEM_ENV_CHECK(parts_.rewards.generators() != nullptr, "the run has a --custom-generate-function-path");
    request.generation.emplace(CustomGeneration{.processes = parts_.rewards.generators(),
                                                .function = config.custom_generate.function,
                                                .metadata_key = config.data.lines.metadata_key,
                                                .context_tokens = parts_.context_tokens,
                                                .vocab = parts_.vocab,
                                                .is_evaluation = open_.is_evaluation});
  }
  if (open_.is_filtered) {
    TANDEM_ENV_CHECK(parts_.rewards.filter() != nullptr, "the run has a --dynamic-sampling-filter-path");
    request.dynamic.emplace(DynamicSampling{
        .filter = parts_.rewards.filter(), .filter_name = config.dynamic_sampling.filter_path, .next_prompt = {}});
  }
  return request;
}

reward::Scorer* ServedRollout::scorer() const {
  switch (open_.graded_by) {
    case GradedBy::kNobody: return nullptr;
    case GradedBy::kTraining: return parts_.rewards.of_training();
    case GradedBy::kEvalSet: break;
  }
  return parts_.rewards.of_evaluation().at(static_cast<size_t>(open_.eval_set));
}

void ServedRollout::add(Task task) {
  num_asked_ = std::max<int64_t>(num_asked_ - 1, 0);
  const auto [line, is_new] = lines_.insert_or_assign(task.index, std::move(task.line));
  work_->begin(task.index, line->second);
}

void ServedRollout::abort(uint64_t index) { work_->abort(index); }

// A quarter of the share at a time: what the engine has no room for is better left to others.
int64_t ServedRollout::num_to_pull() {
  const int64_t under_way = work_->num_under_way() + num_asked_;
  const int64_t room = open_.groups_at_once - under_way;
  if (num_asked_ > 0 || room <= 0 || (under_way > 0 && !work_->has_room())) return 0;
  const int64_t count = std::min(room, std::max<int64_t>(open_.groups_at_once / 4, 1));
  num_asked_ += count;
  return count;
}

std::optional<Done> ServedRollout::advance() {
  work_->advance();
  if (done_.groups.empty()) return std::nullopt;
  done_.stats = work_->stats();
  done_.losses = work_->losses();
  std::string message = to_bytes(done_, [this](size_t index) { return prompt_of(index); });
  done_.groups.clear();
  return Done{.rollout = open_.rollout, .message = std::move(message)};
}

}  // namespace tandem::sampling
