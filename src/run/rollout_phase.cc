#include "run/rollout_phase.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/log.h"
#include "base/message_text.h"
#include "run/group_sampler.h"
#include "run/group_selection.h"
#include "run/stop_signal.h"
#include "run/turn_sampler.h"

namespace tandem::run {

namespace {

using base::Clock;
using base::seconds_since;

// Of reasons to drop groups, in one rollout: each is a metric of its own.
constexpr size_t kMaxDropReasons = 32;

text::GradeRequest grade_request(const rl::PromptRecord& record, const SampledGroup::Member& member) {
  const rl::Sample& sample = member.sample;
  text::GradeRequest request;
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
text::Grade failed_grade(const SampledGroup::Member& member) {
  text::Grade grade;
  grade.sample_id = member.sample.sample_id;
  grade.failed = true;
  grade.reason_class = member.machine_failed ? "not_started" : kGenerateFailure;
  grade.reason = base::one_line(member.failure, 4096);
  return grade;
}

std::unique_ptr<GroupSampler> make_sampler(const RolloutRequest& request, rollout::Engine& engine) {
  if (!request.generation) return std::make_unique<EngineSampler>(engine);
  return std::make_unique<TurnSampler>(engine, request.generation->processes,
                                       TurnSampler::Settings{.function = request.generation->function,
                                                             .skip_special_tokens = request.skip_special_tokens,
                                                             .is_evaluation = request.generation->is_evaluation,
                                                             .metadata_key = request.generation->metadata_key,
                                                             .context_tokens = request.generation->context_tokens});
}

rl::SampleStatus status_named(const std::string& name) {
  for (const auto status : {rl::SampleStatus::kTruncated, rl::SampleStatus::kAborted}) {
    if (name == rl::to_string(status)) return status;
  }
  return rl::SampleStatus::kCompleted;
}

// What a slime function wrote into its sample.
void put_written(rl::Sample& sample, const text::Grade& grade) {
  if (grade.remove_sample) sample.remove = *grade.remove_sample;
  // A token that is masked stays so: nobody sampled it.
  for (size_t i = 0; grade.loss_mask && i < sample.loss_mask.size(); ++i) sample.loss_mask[i] &= (*grade.loss_mask)[i];
  if (grade.status) sample.status = status_named(*grade.status);
}

void put_reward(rl::Sample& sample, const text::Grade& grade) {
  if (!grade.failed) sample.reward = grade.reward;
  put_written(sample, grade);
}

// Rewards, and what reward code wrote, into the samples of a rollout that has its grades.
void put_grades(const config::FailureReward& failure_reward, Rollout& rollout) {
  const base::Redaction redaction;  // reasons quote what user code raised, and go into samples/ as columns do
  TANDEM_CHECK_EQ(rollout.grades.size(), rollout.samples.size());
  for (size_t i = 0; i < rollout.samples.size(); ++i) {
    text::Grade& grade = rollout.grades[i];
    TANDEM_CHECK_EQ(grade.sample_id, rollout.samples[i].sample_id, "a sample without a grade");
    grade.reason = redaction.apply(grade.reason);
    for (auto& [name, value] : grade.columns) {
      if (value.is_string()) value = redaction.apply(value.get_ref<const std::string&>());
    }
    put_reward(rollout.samples[i], grade);
  }
  rollout.num_unnamed = limit_reward_names(rollout.grades);
  put_failure_rewards(failure_reward, rollout.grades, rollout.samples);
  rollout.count_failures();
}

// One group on its way: drawn, sampled, graded, judged.
struct GroupUnderWay {
  const PromptLine* line = nullptr;
  std::vector<SampledGroup::Member> members;  // none before it is sampled, nor once it is dropped
  std::vector<text::Grade> grades;
  size_t num_graded = 0;
  GroupVerdict verdict;
  bool is_judged = false;   // by the filter
  double reward_sum = 0.0;  // of its samples with a reward
  int64_t num_rewarded = 0;
};

// Makes one rollout: draws groups, samples, grades and judges them as each comes, and takes them in the order in which
// they were drawn.
class Sampling {
 public:
  Sampling(const RolloutRequest& request, rollout::Engine& engine, text::TextWorker& text, text::Scorer* graders,
           report::Report& report)
      : request_(request),
        n_(static_cast<uint64_t>(request.n_samples_per_prompt)),
        engine_(engine),
        sampler_(make_sampler(request, engine)),
        text_(text),
        graders_(graders),
        report_(report),
        selection_(request.dynamic ? request.dynamic->num_groups : std::ssize(request.prompts),
                   request.dynamic ? request.dynamic->groups_at_once : std::ssize(request.prompts)),
        repeated_before_(graders == nullptr ? 0 : graders->repeated()),
        restarts_before_(graders == nullptr ? 0 : graders->restarts()),
        generators_before_(generator_totals()) {
    TANDEM_CHECK(request.first_sample_id % n_ == 0, "groups must not share sample ids");
    TANDEM_CHECK(!request.dynamic || graders != nullptr, "a filter judges rewards");
  }

  // False when the run was asked to stop.
  bool run();
  Rollout rollout();

 private:
  // Of the processes of --custom-generate-function-path, since the run began.
  struct GeneratorTotals {
    int64_t restarts = 0, repeated = 0;
  };

  void draw();
  void advance();
  void take_sampled(SampledGroup group);
  GeneratorTotals generator_totals() const;
  void take_graded();
  void take_judged();
  void judge(size_t index);
  void decide(size_t index);
  void abort_excess();
  void check_that_some_pass() const;
  void show_progress() const;
  FilteredGroups filtered() const;
  std::vector<std::string> decode(const std::vector<std::vector<int32_t>>& tokens);

  uint64_t group_id(size_t index) const { return request_.first_sample_id / n_ + index; }
  size_t index_of_group(uint64_t id) const { return id - request_.first_sample_id / n_; }

  const RolloutRequest& request_;
  const uint64_t n_;
  rollout::Engine& engine_;
  const std::unique_ptr<GroupSampler> sampler_;
  text::TextWorker& text_;
  text::Scorer* const graders_;
  report::Report& report_;
  GroupSelection selection_;
  std::vector<GroupUnderWay> groups_;  // in the order in which they were drawn
  int64_t num_in_sampler_ = 0, num_sampled_ = 0;
  int64_t num_in_grading_ = 0, num_in_filter_ = 0;  // samples, groups
  int64_t num_graded_ = 0;                          // samples
  int64_t num_aborted_ = 0;
  size_t excess_begin_ = std::numeric_limits<size_t>::max();  // groups from here on have been ended
  const int64_t repeated_before_, restarts_before_;
  const GeneratorTotals generators_before_;
};

bool Sampling::run() {
  while (true) {
    draw();
    if (stop_requested()) {
      sampler_->abort_all();
      sampler_->take_finished();
      return false;
    }
    if (selection_.is_full()) break;
    advance();
    take_graded();
    take_judged();
  }
  // All that the engine still has is excess, and was ended when it became that.
  for (SampledGroup& group : sampler_->take_finished()) take_sampled(std::move(group));
  TANDEM_CHECK_EQ(num_in_sampler_, 0);
  // What is still graded or judged is of groups that nobody wants.
  if (request_.dynamic) {
    graders_->discard();
    request_.dynamic->filter.discard();
  }
  return true;
}

void Sampling::draw() {
  for (int64_t left = selection_.num_to_draw(); left > 0; --left) {
    const size_t index = groups_.size();
    groups_.emplace_back();
    groups_.back().line = request_.dynamic ? request_.dynamic->next_prompt() : request_.prompts[index];
    selection_.draw();
    rollout::GroupRequest group;
    group.group_id = group_id(index);
    group.prompt = groups_.back().line->prompt;
    for (uint64_t i = 0; i < n_; ++i) group.sample_ids.push_back(request_.first_sample_id + index * n_ + i);
    group.sampling = request_.sampling;
    sampler_->add(std::move(group), groups_.back().line->record);
    ++num_in_sampler_;
  }
}

// One forward, so that the live line moves and a signal is seen while long completions decode.
void Sampling::advance() {
  show_progress();
  if (num_in_sampler_ > 0) sampler_->step();
  for (SampledGroup& group : sampler_->take_finished()) take_sampled(std::move(group));
}

void Sampling::take_sampled(SampledGroup group) {
  --num_in_sampler_;
  const size_t index = index_of_group(group.group_id);
  TANDEM_CHECK(index < groups_.size(), "a completion of unknown group", group.group_id);
  if (!selection_.may_be_taken(index)) {
    num_aborted_ += group.is_cut ? 1 : 0;
    return;
  }
  ++num_sampled_;
  GroupUnderWay& under_way = groups_[index];
  under_way.members = std::move(group.members);
  std::vector<std::vector<int32_t>> tokens;
  for (const SampledGroup::Member& member : under_way.members) tokens.push_back(member.sample.completion);
  std::vector<std::string> texts = decode(tokens);
  for (size_t i = 0; i < n_; ++i) under_way.members[i].sample.text = std::move(texts[i]);
  if (graders_ == nullptr) return decide(index);
  under_way.grades.resize(n_);
  std::vector<text::GradeRequest> requests;
  for (size_t i = 0; i < n_; ++i) {
    SampledGroup::Member& member = under_way.members[i];
    if (member.failure.empty()) {
      requests.push_back(grade_request(under_way.line->record, member));
    } else {
      member.sample.text.clear();
      under_way.grades[i] = failed_grade(member);
      ++under_way.num_graded;
      ++num_graded_;
    }
  }
  if (requests.empty()) return judge(index);
  num_in_grading_ += std::ssize(requests);
  graders_->submit(std::move(requests));
}

Sampling::GeneratorTotals Sampling::generator_totals() const {
  const std::optional<CustomGeneration>& generation = request_.generation;
  if (!generation) return {};
  return {.restarts = generation->processes.restarts(), .repeated = generation->processes.repeated()};
}

// Grades that have come; while nothing is left to sample, waits for some.
void Sampling::take_graded() {
  constexpr double kLookEvery = 0.1;  // seconds between two looks at the stop signal
  if (num_in_grading_ == 0) return;
  const bool has_other_work = num_in_sampler_ > 0 || num_in_filter_ > 0;
  for (text::Grade& grade : graders_->take_finished(has_other_work ? 0.0 : kLookEvery)) {
    --num_in_grading_;
    ++num_graded_;
    const size_t index = (grade.sample_id - request_.first_sample_id) / n_;
    TANDEM_CHECK(index < groups_.size(), "a grade of unknown sample", grade.sample_id);
    if (!selection_.may_be_taken(index)) continue;
    GroupUnderWay& group = groups_[index];
    group.grades[grade.sample_id % n_] = std::move(grade);
    if (++group.num_graded == n_) judge(index);
  }
}

void Sampling::judge(size_t index) {
  GroupUnderWay& group = groups_[index];
  if (!request_.dynamic) return decide(index);
  const std::optional<double> failure_reward = failure_reward_among(request_.failure_reward, group.grades);
  std::vector<text::GradeRequest> rewarded;
  for (size_t i = 0; i < n_; ++i) {
    const text::Grade& grade = group.grades[i];
    if (grade.failed && (!failure_reward || grade.gives_none())) continue;
    const double reward = grade.failed ? *failure_reward : grade.reward;
    group.reward_sum += reward;
    ++group.num_rewarded;
    const rl::Sample& sample = group.members[i].sample;
    rewarded.push_back(grade_request(group.line->record, group.members[i]));
    rewarded.back().graded = text::Graded{.reward = reward,
                                          .extras = grade.extras,
                                          .remove_sample = grade.remove_sample.value_or(false),
                                          .status = grade.status.value_or(rl::to_string(sample.status))};
  }
  // Where grading failed for the whole group there is nothing to judge: it is taken, and counted as failed.
  if (rewarded.empty()) return decide(index);
  group.is_judged = true;
  ++num_in_filter_;
  request_.dynamic->filter.submit(std::move(rewarded));
}

void Sampling::take_judged() {
  constexpr double kLookEvery = 0.1;  // seconds
  if (num_in_filter_ == 0) return;
  const bool has_other_work = num_in_sampler_ > 0 || num_in_grading_ > 0;
  for (auto& [id, verdict] : request_.dynamic->filter.take(has_other_work ? 0.0 : kLookEvery)) {
    --num_in_filter_;
    const size_t index = index_of_group(id);
    groups_[index].verdict = std::move(verdict);
    if (selection_.may_be_taken(index)) decide(index);
  }
}

void Sampling::decide(size_t index) {
  const bool is_kept = groups_[index].verdict.is_kept;
  if (!is_kept) {
    groups_[index].members = {};
    groups_[index].grades = {};
  }
  selection_.decide(index, is_kept);
  if (!request_.dynamic) return;
  check_that_some_pass();
  abort_excess();
}

// Groups that can no longer be taken need not be finished. None is drawn behind them.
void Sampling::abort_excess() {
  size_t begin = std::min(excess_begin_, groups_.size());
  for (; begin > 0 && !selection_.may_be_taken(begin - 1); --begin) sampler_->abort(group_id(begin - 1));
  if (begin < groups_.size()) excess_begin_ = begin;
}

void Sampling::check_that_some_pass() const {
  const DynamicSampling& dynamic = *request_.dynamic;
  if (selection_.num_dropped_in_a_row() < dynamic.max_dropped) return;
  std::map<std::string, int64_t> reasons;
  for (size_t i = selection_.num_judged() - static_cast<size_t>(dynamic.max_dropped); i < selection_.num_judged(); ++i)
    ++reasons[groups_[i].verdict.reason];
  std::vector<std::pair<int64_t, std::string>> sorted;
  for (const auto& [reason, count] : reasons) sorted.emplace_back(count, reason);
  std::ranges::sort(sorted, std::greater());
  std::string shown;
  for (size_t i = 0; i < std::min<size_t>(sorted.size(), 3); ++i)
    shown += fmt::format("{}{} {}", i == 0 ? "" : ", ", sorted[i].first, sorted[i].second);
  throw UserError(fmt::format(
      "{}: {} groups in a row, at least a whole pass over the data, were dropped by --dynamic-sampling-filter-path {} "
      "({}), so there is nothing to train on: give prompts that are sometimes answered right, raise "
      "--n-samples-per-prompt or --rollout-temperature, or leave the filter out",
      request_.title, dynamic.max_dropped, dynamic.filter_name, shown));
}

void Sampling::show_progress() const {
  const std::string tokens = base::with_commas(engine_.stats().generated_tokens);
  if (const std::optional<DynamicSampling>& dynamic = request_.dynamic) {
    const int64_t kept = std::min(selection_.num_kept(), dynamic->num_groups);
    report_.progress(request_.title, kept, dynamic->num_groups,
                     fmt::format("groups kept of {} sampled, {} tokens", num_sampled_, tokens));
  } else if (num_in_sampler_ > 0) {
    report_.progress(request_.title, num_sampled_, std::ssize(request_.prompts),
                     fmt::format("prompts, {} tokens", tokens));
  } else {
    report_.progress(request_.title, num_graded_, std::ssize(request_.prompts) * request_.n_samples_per_prompt,
                     "rewards");
  }
}

std::vector<std::string> Sampling::decode(const std::vector<std::vector<int32_t>>& tokens) {
  try {
    return text_.decode(tokens, request_.skip_special_tokens);
  } catch (const text::WorkerError& error) {
    base::log_warning("the text worker was lost and replaced: {}", error.what());
    return text_.decode(tokens, request_.skip_special_tokens);
  }
}

// Of the groups up to the last one taken, which the order alone decides.
FilteredGroups Sampling::filtered() const {
  FilteredGroups result;
  double reward_sum = 0.0;
  int64_t num_rewarded = 0;
  for (size_t i = 0; i < selection_.num_judged(); ++i) {
    const GroupUnderWay& group = groups_[i];
    ++result.num_groups;
    reward_sum += group.reward_sum;
    num_rewarded += group.num_rewarded;
    if (!group.is_judged) continue;
    ++result.num_judged;
    if (!group.verdict.failure.empty() && ++result.num_failures == 1)
      result.first_failure = fmt::format("group {}: {}", group_id(i), group.verdict.failure);
    if (group.verdict.is_kept) continue;
    const bool is_listed = result.dropped.contains(group.verdict.reason) || result.dropped.size() < kMaxDropReasons;
    ++result.dropped[is_listed ? group.verdict.reason : "other"];
  }
  if (num_rewarded > 0) result.mean_reward = reward_sum / static_cast<double>(num_rewarded);
  result.has_mean_reward = num_rewarded > 0;
  result.num_excess = static_cast<int64_t>(groups_.size() - selection_.num_judged());
  result.num_aborted = num_aborted_;
  return result;
}

Rollout Sampling::rollout() {
  Rollout rollout;
  for (const size_t index : selection_.taken()) {
    GroupUnderWay& group = groups_[index];
    for (SampledGroup::Member& member : group.members) rollout.samples.push_back(std::move(member.sample));
    std::ranges::move(group.grades, std::back_inserter(rollout.grades));
  }
  rollout.stats = engine_.stats();
  rollout.is_sampled = true;
  rollout.num_generate_restarts = generator_totals().restarts - generators_before_.restarts;
  rollout.num_generate_repeated = generator_totals().repeated - generators_before_.repeated;
  if (request_.dynamic) rollout.filtered = filtered();
  if (graders_ == nullptr) return rollout;
  put_grades(request_.failure_reward, rollout);
  rollout.num_repeated = graders_->repeated() - repeated_before_;
  rollout.num_restarts = graders_->restarts() - restarts_before_;
  return rollout;
}

}  // namespace

std::vector<const rl::Sample*> Rollout::views() const {
  std::vector<const rl::Sample*> result;
  for (const rl::Sample& sample : samples) result.push_back(&sample);
  return result;
}

void Rollout::count_failures() {
  num_failed = num_dropped = 0;
  first_failure.clear();
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].grading_failed) continue;
    if (++num_failed == 1) first_failure = fmt::format("sample {}: {}", samples[i].sample_id, grades[i].reason);
    num_dropped += samples[i].has_reward ? 0 : 1;
  }
}

int64_t FilteredGroups::num_dropped() const {
  int64_t count = 0;
  for (const auto& [reason, groups] : dropped) count += groups;
  return count;
}

std::optional<Rollout> RolloutPhase::run(const RolloutRequest& request, text::Scorer* graders, report::Report& report) {
  const Clock::time_point begin = Clock::now();
  engine_.reset_stats();
  Sampling sampling(request, engine_, text_, graders, report);
  if (!sampling.run()) return std::nullopt;
  Rollout rollout = sampling.rollout();
  warn_of_names(rollout, request.title);
  rollout.seconds = seconds_since(begin);
  return rollout;
}

int64_t limit_reward_names(std::vector<text::Grade>& grades) {
  std::unordered_set<std::string> names;
  int64_t num_left_out = 0;
  const auto limit = [&](auto& named) {
    num_left_out += static_cast<int64_t>(std::erase_if(named, [&](const auto& entry) {
      if (names.contains(entry.first)) return false;
      if (names.size() >= kMaxRewardNames) return true;
      names.insert(entry.first);
      return false;
    }));
  };
  for (text::Grade& grade : grades) {
    limit(grade.extras);
    limit(grade.metrics);
    limit(grade.columns);
  }
  return num_left_out;
}

void RolloutPhase::warn_of_names(const Rollout& rollout, const std::string& title) {
  if (rollout.num_unnamed == 0 || std::exchange(names_are_said_, true)) return;
  base::log_warning(
      "{}: the reward gave numbers or columns under more than {} names; the first {} are kept and {} "
      "values are left out (fault/reward_names): name a quantity alike in every sample",
      title, kMaxRewardNames, kMaxRewardNames, rollout.num_unnamed);
}

}  // namespace tandem::run
