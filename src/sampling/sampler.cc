#include "sampling/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <ranges>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/message_text.h"
#include "sampling/failure_reward.h"
#include "sampling/rollout.h"
#include "sampling/turn_sampler.h"

namespace tandem::sampling {

namespace {

reward::GradeRequest grade_request(const data::PromptRecord& record, const groups::Member& member) {
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

// Returns the grade of a sample that the function of --custom-generate-function-path did not make, or that cannot be
// trained on.
reward::Grade failed_grade(const groups::Member& member) {
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

Sampler::Sampler(const RolloutRequest& request, rollout::Engine& engine, text::TextWorker& text,
                 reward::Scorer* graders, int64_t most_samples, bool shares)
    : request_(request),
      n_(static_cast<uint64_t>(request.n_samples_per_prompt)),
      engine_(engine),
      text_(text),
      graders_(graders),
      most_samples_(most_samples),
      shares_(shares),
      sampler_(make_sampler(request, engine)),
      losses_before_(total_losses()) {
  engine_.reset_stats();
  TANDEM_CHECK(request.first_sample_id % n_ == 0, "groups must not share sample ids");
  TANDEM_CHECK(request.is_graded == (graders != nullptr));
  TANDEM_CHECK(!request.dynamic || graders != nullptr, "a filter judges rewards");
}

ProcessLosses Sampler::total_losses() const {
  ProcessLosses losses;
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

ProcessLosses Sampler::losses() const { return total_losses() - losses_before_; }

void Sampler::add(const groups::SampleLoan& loan) {
  rollout::GroupRequest request;
  request.group_id = first_group_id() + loan.group;
  request.prompt = loan.line->prompt;
  const uint64_t first = request_.first_sample_id + loan.group * n_ + loan.first;
  for (uint64_t i = 0; i < loan.count; ++i) request.sample_ids.push_back(first + i);
  request.sampling = request_.sampling;
  request.begun = loan.begun;
  for (size_t i = 0; i < request.begun.size(); ++i) request.begun[i].sample_id = request.sample_ids[i];
  request.budgets = loan.budgets;
  const auto count = static_cast<int64_t>(loan.count);
  num_asked_ = std::max<int64_t>(num_asked_ - count, 0);
  sampler_->add(loan.key, std::move(request), loan.line->record);
  num_samples_ += count;
  samples_.emplace(loan.key, count);
}

void Sampler::add(groups::GradeLoan loan) {
  TANDEM_CHECK(graders_ != nullptr, "nothing is graded here");
  const uint64_t key = loan.key;
  key_of_group_[first_group_id() + loan.group] = key;
  Grading& grading = gradings_[key];
  grading.loan = std::move(loan);
  grading.grades.resize(n_);
  to_grade_.push_back(key);
}

void Sampler::begin_gradings() {
  std::erase_if(to_grade_, [&](uint64_t key) { return !gradings_.contains(key); });  // it was aborted
  std::vector<groups::Member*> without_text;
  for (const uint64_t key : to_grade_) {
    for (groups::Member& member : gradings_.at(key).loan.members) {
      if (is_decoded_for_grading(member) && member.failure.empty()) without_text.push_back(&member);
    }
  }
  decode_texts(without_text);
  for (const uint64_t key : std::exchange(to_grade_, {})) begin_grading(key);
}

void Sampler::begin_grading(uint64_t key) {
  Grading& grading = gradings_.at(key);
  std::vector<reward::GradeRequest> requests;
  for (size_t i = 0; i < n_; ++i) {
    const groups::Member& member = grading.loan.members[i];
    if (member.failure.empty()) {
      requests.push_back(grade_request(grading.loan.line->record, member));
      requests.back().state = request_.state;
      if (request_.eval_set >= 0) {
        requests.back().shown_as =
            fmt::format("sample {} of {}", member.sample.sample_id - request_.first_sample_id, request_.title);
      }
    } else {
      grading.grades[i] = failed_grade(member);
      ++grading.num_graded;
    }
  }
  if (requests.empty()) return judge(key);
  num_in_grading_ += std::ssize(requests);
  graders_->submit(std::move(requests));
}

void Sampler::abort(uint64_t key) {
  if (const auto samples = samples_.find(key); samples != samples_.end()) {
    sampler_->abort(key);
    num_samples_ -= samples->second;
    samples_.erase(samples);
  } else if (const auto grading = gradings_.find(key); grading != gradings_.end()) {
    key_of_group_.erase(first_group_id() + grading->second.loan.group);
    gradings_.erase(grading);
  }
}

void Sampler::abort_all() {
  sampler_->abort_all();
  sampler_->take_finished();
  samples_.clear();
  gradings_.clear();
  to_grade_.clear();
  key_of_group_.clear();
  num_samples_ = 0;
  sampled_.clear();
  graded_.clear();
  if (graders_ != nullptr && num_in_grading_ > 0) graders_->discard();
  if (request_.dynamic && num_in_filter_ > 0) request_.dynamic->filter->discard();
  num_in_grading_ = num_in_filter_ = 0;
}

int64_t Sampler::num_to_ask_for() {
  const int64_t room = most_samples_ - num_samples_ - num_asked_;
  if (num_asked_ > 0 || room <= 0 || (shares_ && num_samples_ > 0 && !engine_.has_room())) return 0;
  const auto n = static_cast<int64_t>(n_);
  const int64_t quarter = std::max<int64_t>((most_samples_ / 4 + n - 1) / n, 1) * n;
  const int64_t count = shares_ ? std::min(room, quarter) : room;
  num_asked_ += count;
  return count;
}

void Sampler::advance() {
  begin_gradings();
  if (!samples_.empty() || engine_.shares_steps()) sampler_->step();
  take_from_engine();
  take_grades();
  take_verdicts();
}

std::vector<int> Sampler::descriptors() const {
  std::vector<int> result = sampler_->descriptors();
  if (graders_ != nullptr) std::ranges::copy(graders_->descriptors(), std::back_inserter(result));
  if (request_.dynamic) {
    if (const std::optional<int> filter = request_.dynamic->filter->descriptor()) result.push_back(*filter);
  }
  return result;
}

void Sampler::take_from_engine() {
  std::vector<groups::SampledLoan> loans = sampler_->take_finished();
  if (loans.empty()) return;
  std::vector<groups::Member*> members;
  for (groups::SampledLoan& loan : loans) {
    const auto found = samples_.find(loan.key);
    TANDEM_CHECK(found != samples_.end(), "a loan that nobody gave", loan.key);
    num_samples_ -= found->second;
    samples_.erase(found);
    for (groups::Member& member : loan.members) {
      if (!member.is_paused && !is_decoded_for_grading(member)) members.push_back(&member);
    }
  }
  decode_texts(members);
  std::ranges::move(loans, std::back_inserter(sampled_));
}

void Sampler::decode_texts(const std::vector<groups::Member*>& members) {
  if (members.empty()) return;
  std::vector<std::vector<int32_t>> tokens;
  for (const groups::Member* const member : members) tokens.push_back(member->sample.completion);
  std::vector<std::string> texts = decode(tokens, request_.skip_special_tokens);
  for (size_t i = 0; i < members.size(); ++i) members[i]->sample.text = std::move(texts[i]);
  decode_pieces(members);
  for (groups::Member* const member : members) {
    if (member->failure.empty() || graders_ == nullptr) continue;
    member->sample.text.clear();
    member->sample.pieces.clear();
  }
}

void Sampler::take_grades() {
  if (num_in_grading_ == 0) return;
  for (reward::Grade& grade : graders_->take_finished(0.0)) {
    --num_in_grading_;
    const auto key = key_of_group_.find(grade.sample_id / n_);
    if (key == key_of_group_.end()) continue;
    Grading& grading = gradings_.at(key->second);
    grading.grades[grade.sample_id % n_] = std::move(grade);
    if (++grading.num_graded == n_) judge(key->second);
  }
}

void Sampler::judge(uint64_t key) {
  if (!request_.dynamic) return give_back(key);
  Grading& group = gradings_.at(key);
  const std::optional<double> failure_reward = failure_reward_among(request_.failure_reward, group.grades);
  std::vector<reward::GradeRequest> rewarded;
  for (size_t i = 0; i < n_; ++i) {
    const reward::Grade& grade = group.grades[i];
    if (grade.failed && (!failure_reward || grade.gives_none())) continue;
    const double reward = grade.failed ? *failure_reward : grade.reward;
    group.result.reward_sum += reward;
    ++group.result.num_rewarded;
    const groups::Member& member = group.loan.members[i];
    rewarded.push_back(grade_request(group.loan.line->record, member));
    rewarded.back().graded = reward::Graded{.reward = reward,
                                            .extras = grade.extras,
                                            .remove_sample = grade.remove_sample.value_or(false),
                                            .status = grade.status.value_or(rl::to_string(member.sample.status))};
  }
  // If grading failed for the whole group, there is nothing to judge: the group is taken, and counted as failed.
  if (rewarded.empty()) return give_back(key);
  group.result.is_judged = true;
  ++num_in_filter_;
  request_.dynamic->filter->submit(std::move(rewarded));
}

void Sampler::take_verdicts() {
  if (num_in_filter_ == 0) return;
  for (auto& [group_id, verdict] : request_.dynamic->filter->take()) {
    --num_in_filter_;
    const auto key = key_of_group_.find(group_id);
    if (key == key_of_group_.end()) continue;
    gradings_.at(key->second).result.verdict = std::move(verdict);
    give_back(key->second);
  }
}

void Sampler::give_back(uint64_t key) {
  Grading grading = std::move(gradings_.extract(key).mapped());
  key_of_group_.erase(first_group_id() + grading.loan.group);
  groups::GroupGrades& result = grading.result;
  std::vector<std::string> texts;
  if (result.verdict.is_kept) {
    result.grades = std::move(grading.grades);
    for (groups::Member& member : grading.loan.members)
      texts.push_back(is_decoded_for_grading(member) ? std::move(member.sample.text) : "");
  }
  for (reward::Grade& grade : result.grades) {
    grade.reason = redaction_.apply(grade.reason);
    for (auto& [name, value] : grade.columns) {
      if (value.is_string()) value = redaction_.apply(value.get_ref<const std::string&>());
    }
  }
  graded_.push_back({.key = key, .graded = std::move(result), .texts = std::move(texts)});
}

void Sampler::decode_pieces(const std::vector<groups::Member*>& members) {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<rl::SamplePiece*> pieces;
  for (groups::Member* const member : members) {
    const std::vector<int32_t>& completion = member->sample.completion;
    auto end = completion.end();
    for (rl::SamplePiece& piece : std::views::reverse(member->sample.pieces)) {
      const auto begin = completion.begin() + piece.begin;
      tokens.emplace_back(begin, std::exchange(end, begin));
      pieces.push_back(&piece);
    }
  }
  if (pieces.empty()) return;
  std::vector<std::string> texts = decode(tokens, /*skip_special_tokens=*/false);
  for (size_t i = 0; i < pieces.size(); ++i) pieces[i]->text = std::move(texts[i]);
}

std::vector<std::string> Sampler::decode(const std::vector<std::vector<int32_t>>& tokens, bool skip_special_tokens) {
  try {
    return text_.decode(tokens, skip_special_tokens);
  } catch (const worker::WorkerError& error) {
    base::log_warning("the text worker was lost and replaced: {}", error.what());
    return text_.decode(tokens, skip_special_tokens);
  }
}

}  // namespace tandem::sampling
