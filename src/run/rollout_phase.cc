#include "run/rollout_phase.h"

#include <fmt/format.h>

#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/log.h"
#include "base/message_text.h"
#include "run/stop_signal.h"

namespace tandem::run {

namespace {

using base::Clock;
using base::seconds_since;

rl::SampleStatus status_of(rl::FinishReason reason) {
  if (reason == rl::FinishReason::kStop) return rl::SampleStatus::kCompleted;
  if (reason == rl::FinishReason::kLength) return rl::SampleStatus::kTruncated;
  return rl::SampleStatus::kAborted;
}

rl::Sample make_sample(rl::SharedPrompt prompt, uint64_t group_id, rl::Completion completion, std::string text) {
  rl::Sample sample;
  sample.group_id = group_id;
  sample.sample_id = completion.sample_id;
  sample.prompt = std::move(prompt);
  sample.loss_mask.assign(completion.tokens.size(), 1);
  sample.completion = std::move(completion.tokens);
  sample.rollout_logprobs = std::move(completion.logprobs);
  sample.behavior_logprobs = std::move(completion.behavior_logprobs);
  sample.status = status_of(completion.finish_reason);
  sample.versions = std::move(completion.versions);
  sample.text = std::move(text);
  return sample;
}

text::GradeRequest grade_request(const rl::PromptRecord& record, const rl::Sample& sample) {
  text::GradeRequest request;
  request.group_id = sample.group_id;
  request.sample_id = sample.sample_id;
  request.prompt = record.prompt;
  request.prompt_text = sample.prompt->text;
  request.response = sample.text;
  request.label = record.label;
  request.metadata = record.metadata;
  request.prompt_tokens = sample.prompt->tokens;
  request.response_tokens = sample.completion;
  request.truncated = sample.status == rl::SampleStatus::kTruncated;
  return request;
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
  if (grade.loss_mask) sample.loss_mask = *grade.loss_mask;
  if (grade.status) sample.status = status_named(*grade.status);
}

void put_reward(rl::Sample& sample, const text::Grade& grade) {
  if (!grade.failed) sample.reward = grade.reward;
  put_written(sample, grade);
}

void collect_rewards(const RolloutRequest& request, text::Graders& graders, Rollout& rollout) {
  const base::Redaction redaction;  // reasons quote what user code raised, and go into samples/ as columns do
  rollout.grades.resize(rollout.samples.size());
  const int64_t repeated_before = graders.repeated();
  const int64_t restarts_before = graders.restarts();
  for (text::Grade& grade : graders.collect()) {
    const size_t index = grade.sample_id - request.first_sample_id;
    TANDEM_CHECK(index < rollout.samples.size(), "a grade of unknown sample", grade.sample_id);
    grade.reason = redaction.apply(grade.reason);
    for (auto& [name, value] : grade.columns) {
      if (value.is_string()) value = redaction.apply(value.get_ref<const std::string&>());
    }
    rollout.grades[index] = std::move(grade);
  }
  rollout.num_repeated = graders.repeated() - repeated_before;
  rollout.num_restarts = graders.restarts() - restarts_before;
  for (size_t i = 0; i < rollout.samples.size(); ++i) {
    TANDEM_CHECK_EQ(rollout.grades[i].sample_id, rollout.samples[i].sample_id, "a sample without a grade");
    put_reward(rollout.samples[i], rollout.grades[i]);
  }
  rollout.num_unnamed = limit_reward_names(rollout.grades);
  put_failure_rewards(request.failure_reward, rollout.grades, rollout.samples);
  rollout.count_failures();
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

std::optional<Rollout> RolloutPhase::run(const RolloutRequest& request, text::Graders* graders,
                                         report::Report& report) {
  const Clock::time_point begin = Clock::now();
  const auto n = static_cast<uint64_t>(request.n_samples_per_prompt);
  TANDEM_CHECK(request.first_sample_id % n == 0, "groups must not share sample ids");
  Rollout rollout;
  rollout.samples.resize(request.prompts.size() * n);
  engine_.reset_stats();
  for (size_t p = 0; p < request.prompts.size(); ++p) {
    rollout::GroupRequest group;
    group.group_id = request.first_sample_id / n + p;
    group.prompt = request.prompts[p]->prompt;
    for (uint64_t i = 0; i < n; ++i) group.sample_ids.push_back(request.first_sample_id + p * n + i);
    group.sampling = request.sampling;
    engine_.add(std::move(group));
  }
  for (size_t num_done = 0; num_done < request.prompts.size(); ++num_done) {
    std::optional<rl::Group> group = next_group(request, static_cast<int64_t>(num_done), report);
    if (!group) {
      engine_.abort_all();
      while (engine_.next_finished()) {
      }
      return std::nullopt;
    }
    take(request, std::move(*group), rollout, graders);
  }
  rollout.stats = engine_.stats();
  rollout.is_sampled = true;
  if (graders != nullptr) {
    if (!wait_for_rewards(request, *graders, report)) return std::nullopt;
    collect_rewards(request, *graders, rollout);
    warn_of_names(rollout, request.title);
  }
  rollout.seconds = seconds_since(begin);
  return rollout;
}

// False when the run was asked to stop. The graders then still work on what nobody will collect.
bool RolloutPhase::wait_for_rewards(const RolloutRequest& request, text::Graders& graders, report::Report& report) {
  constexpr double kLookEvery = 0.1;  // seconds
  const auto num_samples = static_cast<int64_t>(request.prompts.size()) * request.n_samples_per_prompt;
  while (const int64_t num_left = graders.wait(kLookEvery)) {
    if (stop_requested()) return false;
    report.progress(request.title, num_samples - num_left, num_samples, "rewards");
  }
  return true;
}

// Forward by forward, so that the live line moves and a signal is seen while long completions decode.
std::optional<rl::Group> RolloutPhase::next_group(const RolloutRequest& request, int64_t num_done,
                                                  report::Report& report) {
  const auto num_groups = static_cast<int64_t>(request.prompts.size());
  while (engine_.num_unfinished_groups() + num_done == num_groups) {
    if (stop_requested()) return std::nullopt;
    TANDEM_CHECK(engine_.step(), "the engine has unfinished groups and no work");
    report.progress(request.title, num_done, num_groups,
                    fmt::format("prompts, {} tokens", base::with_commas(engine_.stats().generated_tokens)));
  }
  if (stop_requested()) return std::nullopt;
  return engine_.next_finished();
}

void RolloutPhase::take(const RolloutRequest& request, rl::Group group, Rollout& rollout, text::Graders* graders) {
  std::vector<std::vector<int32_t>> tokens;
  for (const rl::Completion& completion : group.completions) tokens.push_back(completion.tokens);
  std::vector<std::string> texts = decode(tokens, request.skip_special_tokens);
  std::vector<text::GradeRequest> requests;
  for (size_t i = 0; i < group.completions.size(); ++i) {
    rl::Completion& completion = group.completions[i];
    const size_t index = completion.sample_id - request.first_sample_id;
    TANDEM_CHECK(index < rollout.samples.size(), "a completion of unknown sample", completion.sample_id);
    rl::Sample& sample = rollout.samples[index];
    sample = make_sample(group.prompt, group.group_id, std::move(completion), std::move(texts[i]));
    if (graders == nullptr) continue;
    const size_t position = index / static_cast<size_t>(request.n_samples_per_prompt);
    requests.push_back(grade_request(request.prompts[position]->record, sample));
  }
  if (graders != nullptr) graders->submit(std::move(requests));
}

std::vector<std::string> RolloutPhase::decode(const std::vector<std::vector<int32_t>>& tokens,
                                              bool skip_special_tokens) {
  try {
    return text_.decode(tokens, skip_special_tokens);
  } catch (const text::WorkerError& error) {
    base::log_warning("the text worker was lost and replaced: {}", error.what());
    return text_.decode(tokens, skip_special_tokens);
  }
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
