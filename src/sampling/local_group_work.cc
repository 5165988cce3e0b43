#include "sampling/local_group_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/message_text.h"
#include "sampling/rollout.h"
#include "sampling/turn_sampler.h"

namespace tandem::sampling {

namespace {

constexpr double kLookEvery = 0.1;  // seconds between two looks at the stop signal

reward::GradeRequest grade_request(const rl::PromptRecord& record, const SampledGroup::Member& member) {
  const rl::Sample& sample = member.sample;
  reward::GradeRequest request;
  request.group_id = sample.group_id;
  request.sample_id = sample.sample_id;
  request.prompt = record.prompt;
  request.prompt_text = sample.prompt->text;
  request.response = sample.text;
  request.label = record.label;
  request.metadata = member.metadata.is_null() ? record.metadata : member.metadata;
  request.attributes = member.attributes;
  if (std::ranges::count(sample.loss_mask, uint8_t{0}) > 0) request.loss_mask = sample.loss_mask;
  request.prompt_tokens = sample.prompt->tokens;
  request.response_tokens = sample.completion;
  request.truncated = sample.status == rl::SampleStatus::kTruncated;
  request.rm_type = record.rm_type;
  return request;
}

// Of a sample that the function of --custom-generate-function-path did not make, or that cannot be trained on.
reward::Grade failed_grade(const SampledGroup::Member& member) {
  reward::Grade grade;
  grade.sample_id = member.sample.sample_id;
  grade.failed = true;
  grade.reason_class = member.machine_failed ? "not_started" : kGenerateFailure;
  grade.reason = base::one_line(member.failure, 4096);
  return grade;
}

std::unique_ptr<GroupSampler> make_sampler(const RolloutRequest& request, rollout::Engine& engine) {
  if (!request.generation) return std::make_unique<EngineSampler>(engine);
  return std::make_unique<TurnSampler>(engine, *request.generation->processes,
                                       TurnSampler::Settings{.function = request.generation->function,
                                                             .skip_special_tokens = request.skip_special_tokens,
                                                             .is_evaluation = request.generation->is_evaluation,
                                                             .metadata_key = request.generation->metadata_key,
                                                             .context_tokens = request.generation->context_tokens,
                                                             .vocab = request.generation->vocab});
}

}  // namespace

LocalGroupWork::LocalGroupWork(const RolloutRequest& request, rollout::Engine& engine, text::TextWorker& text,
                               reward::Scorer* graders, Done done)
    : request_(request),
      n_(static_cast<uint64_t>(request.n_samples_per_prompt)),
      engine_(engine),
      text_(text),
      graders_(graders),
      done_(std::move(done)),
      sampler_(make_sampler(request, engine)),
      losses_before_(total_losses()) {
  engine_.reset_stats();
  TANDEM_CHECK(request.first_sample_id % n_ == 0, "groups must not share sample ids");
  TANDEM_CHECK(request.is_graded == (graders != nullptr));
  TANDEM_CHECK(!request.dynamic || graders != nullptr, "a filter judges rewards");
}

GroupWork::Losses LocalGroupWork::total_losses() const {
  Losses losses;
  if (graders_ != nullptr) {
    losses.grader_restarts = graders_->restarts();
    losses.repeated_grades = graders_->repeated();
  }
  if (const std::optional<CustomGeneration>& generation = request_.generation) {
    losses.generator_restarts = generation->processes->restarts();
    losses.repeated_generations = generation->processes->repeated();
  }
  return losses;
}

GroupWork::Losses LocalGroupWork::losses() const {
  Losses losses = total_losses();
  losses.grader_restarts -= losses_before_.grader_restarts;
  losses.repeated_grades -= losses_before_.repeated_grades;
  losses.generator_restarts -= losses_before_.generator_restarts;
  losses.repeated_generations -= losses_before_.repeated_generations;
  return losses;
}

void LocalGroupWork::begin(size_t index, const session::PromptLine& line) {
  groups_[index].line = &line;
  rollout::GroupRequest group;
  group.group_id = group_id(index);
  group.prompt = line.prompt;
  for (uint64_t i = 0; i < n_; ++i) group.sample_ids.push_back(request_.first_sample_id + index * n_ + i);
  group.sampling = request_.sampling;
  sampler_->add(std::move(group), line.record);
  ++num_in_sampler_;
}

void LocalGroupWork::advance() {
  if (num_in_sampler_ > 0) sampler_->step();
  take_sampled();
  take_graded();
  take_judged();
}

void LocalGroupWork::abort(size_t index) {
  groups_.erase(index);
  sampler_->abort(group_id(index));
}

void LocalGroupWork::abort_all() {
  groups_.clear();
  sampler_->abort_all();
  sampler_->take_finished();
}

void LocalGroupWork::finish() {
  // All that the engine still has was ended when it became unwanted.
  take_sampled();
  TANDEM_CHECK_EQ(num_in_sampler_, 0);
  // What is still graded or judged is of groups that nobody wants.
  if (request_.dynamic) {
    graders_->discard();
    request_.dynamic->filter->discard();
  }
}

void LocalGroupWork::take_sampled() {
  for (SampledGroup& group : sampler_->take_finished()) take_sampled(std::move(group));
}

void LocalGroupWork::take_sampled(SampledGroup group) {
  --num_in_sampler_;
  const size_t index = index_of_group(group.group_id);
  const auto found = groups_.find(index);
  if (found == groups_.end()) {
    num_cut_ += group.is_cut ? 1 : 0;
    return;
  }
  ++num_sampled_;
  UnderWay& under_way = found->second;
  under_way.members = std::move(group.members);
  std::vector<std::vector<int32_t>> tokens;
  for (const SampledGroup::Member& member : under_way.members) tokens.push_back(member.sample.completion);
  std::vector<std::string> texts = decode(tokens, request_.skip_special_tokens);
  for (size_t i = 0; i < n_; ++i) {
    under_way.members[i].sample.text = std::move(texts[i]);
    under_way.result.longest = std::max(under_way.result.longest, std::ssize(tokens[i]));
  }
  decode_pieces(under_way.members);
  if (graders_ == nullptr) return hand_over(index);
  under_way.grades.resize(n_);
  std::vector<reward::GradeRequest> requests;
  for (size_t i = 0; i < n_; ++i) {
    SampledGroup::Member& member = under_way.members[i];
    if (member.failure.empty()) {
      requests.push_back(grade_request(under_way.line->record, member));
      if (request_.eval_set >= 0) {
        requests.back().shown_as =
            fmt::format("sample {} of {}", member.sample.sample_id - request_.first_sample_id, request_.title);
      }
    } else {
      member.sample.text.clear();
      member.sample.pieces.clear();
      under_way.grades[i] = failed_grade(member);
      ++under_way.num_graded;
      ++num_graded_;
    }
  }
  if (requests.empty()) return judge(index);
  num_in_grading_ += std::ssize(requests);
  graders_->submit(std::move(requests));
}

// Grades that have come; while nothing is left to sample, waits for some.
void LocalGroupWork::take_graded() {
  if (num_in_grading_ == 0) return;
  const bool has_other_work = num_in_sampler_ > 0 || num_in_filter_ > 0;
  for (reward::Grade& grade : graders_->take_finished(has_other_work ? 0.0 : kLookEvery)) {
    --num_in_grading_;
    ++num_graded_;
    const size_t index = (grade.sample_id - request_.first_sample_id) / n_;
    const auto found = groups_.find(index);
    if (found == groups_.end()) continue;
    UnderWay& group = found->second;
    group.grades[grade.sample_id % n_] = std::move(grade);
    if (++group.num_graded == n_) judge(index);
  }
}

void LocalGroupWork::judge(size_t index) {
  if (!request_.dynamic) return hand_over(index);
  UnderWay& group = groups_.at(index);
  const std::optional<double> failure_reward = failure_reward_among(request_.failure_reward, group.grades);
  std::vector<reward::GradeRequest> rewarded;
  for (size_t i = 0; i < n_; ++i) {
    const reward::Grade& grade = group.grades[i];
    if (grade.failed && (!failure_reward || grade.gives_none())) continue;
    const double reward = grade.failed ? *failure_reward : grade.reward;
    group.result.reward_sum += reward;
    ++group.result.num_rewarded;
    const rl::Sample& sample = group.members[i].sample;
    rewarded.push_back(grade_request(group.line->record, group.members[i]));
    rewarded.back().graded = reward::Graded{.reward = reward,
                                            .extras = grade.extras,
                                            .remove_sample = grade.remove_sample.value_or(false),
                                            .status = grade.status.value_or(rl::to_string(sample.status))};
  }
  // Where grading failed for the whole group there is nothing to judge: it is taken, and counted as failed.
  if (rewarded.empty()) return hand_over(index);
  group.result.is_judged = true;
  ++num_in_filter_;
  request_.dynamic->filter->submit(std::move(rewarded));
}

void LocalGroupWork::take_judged() {
  if (num_in_filter_ == 0) return;
  const bool has_other_work = num_in_sampler_ > 0 || num_in_grading_ > 0;
  for (auto& [id, verdict] : request_.dynamic->filter->take(has_other_work ? 0.0 : kLookEvery)) {
    --num_in_filter_;
    const auto found = groups_.find(index_of_group(id));
    if (found == groups_.end()) continue;
    found->second.result.verdict = std::move(verdict);
    hand_over(found->first);
  }
}

void LocalGroupWork::hand_over(size_t index) {
  UnderWay group = std::move(groups_.extract(index).mapped());
  GradedGroup& result = group.result;
  if (result.verdict.is_kept) {
    for (SampledGroup::Member& member : group.members) result.samples.push_back(std::move(member.sample));
    result.grades = std::move(group.grades);
  }
  for (reward::Grade& grade : result.grades) {
    grade.reason = redaction_.apply(grade.reason);
    for (auto& [name, value] : grade.columns) {
      if (value.is_string()) value = redaction_.apply(value.get_ref<const std::string&>());
    }
  }
  done_(index, std::move(result));
}

void LocalGroupWork::decode_pieces(std::vector<SampledGroup::Member>& members) {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<rl::SamplePiece*> pieces;
  for (SampledGroup::Member& member : members) {
    const std::vector<int32_t>& completion = member.sample.completion;
    auto end = completion.end();
    for (rl::SamplePiece& piece : std::views::reverse(member.sample.pieces)) {
      const auto begin = completion.begin() + piece.begin;
      tokens.emplace_back(begin, std::exchange(end, begin));
      pieces.push_back(&piece);
    }
  }
  if (pieces.empty()) return;
  std::vector<std::string> texts = decode(tokens, /*skip_special_tokens=*/false);
  for (size_t i = 0; i < pieces.size(); ++i) pieces[i]->text = std::move(texts[i]);
}

std::vector<std::string> LocalGroupWork::decode(const std::vector<std::vector<int32_t>>& tokens,
                                                bool skip_special_tokens) {
  try {
    return text_.decode(tokens, skip_special_tokens);
  } catch (const worker::WorkerError& error) {
    base::log_warning("the text worker was lost and replaced: {}", error.what());
    return text_.decode(tokens, skip_special_tokens);
  }
}

EngineSource::EngineSource(rollout::Engine& engine, text::TextWorker& text, mesh::Mesh& mesh)
    : engine_(engine),
      text_(text),
      mesh_(mesh),
      leading_(mesh.tensor().size() > 1 && mesh.tensor().rank() == 0
                   ? std::make_unique<rollout::LeadingEngine>(engine, mesh.tensor().host)
                   : nullptr) {}

std::unique_ptr<GroupWork> EngineSource::start(const RolloutRequest& request, reward::Scorer* graders,
                                               GroupWork::Done done) {
  if (mesh_.tensor().rank() > 0) return std::make_unique<NoGroupWork>();  // it follows
  rollout::Engine& asked = leading_ ? *leading_ : engine_;
  return std::make_unique<LocalGroupWork>(request, asked, text_, graders, std::move(done));
}

void EngineSource::end_share() {
  if (leading_) leading_->end();
}

void EngineSource::follow() { rollout::follow(engine_, mesh_.tensor().host); }

}  // namespace tandem::sampling
