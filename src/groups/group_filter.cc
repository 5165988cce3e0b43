#include "groups/group_filter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/env.h"
#include "base/message_text.h"

namespace tandem::groups {

namespace {

constexpr double kMinStd = 1e-6;  // slime has the same value

reward::GraderConfig filter_config(const config::DynamicSamplingOptions& options, const config::RewardOptions& reward,
                                   const session::RewardContext& context) {
  reward::GraderConfig config = session::grader_config(reward, context);
  config.group_filter = options.filter_path;
  config.limits.num_processes = 1;        // it has rewards to look at, not texts to judge
  config.limits.fork_each_call = false;   // and no program to run
  config.warn_of_missing_layers = false;  // the reward's own processes warn of it
  return config;
}

// Returns the filter's answer, which is the grade of the group's first sample.
GroupVerdict verdict_of(const reward::Grade& grade) {
  if (grade.failed) return {.is_kept = true, .reason = "", .failure = grade.reason};
  if (grade.reward != 0.0) return {};
  const auto reason = grade.columns.find("reason");
  const bool has_reason = reason != grade.columns.end() && reason->second.is_string();
  const std::string text = has_reason ? base::one_line(reason->second.get<std::string>(), 80) : "";
  return {.is_kept = false, .reason = text.empty() ? "no_reason" : text, .failure = ""};
}

}  // namespace

GroupVerdict judge_by_std(std::span<const double> rewards) {
  TANDEM_CHECK(!rewards.empty(), "a group without a reward");
  const auto count = static_cast<double>(rewards.size());
  const double mean = std::accumulate(rewards.begin(), rewards.end(), 0.0) / count;
  double squares = 0.0;
  for (const double reward : rewards) squares += (reward - mean) * (reward - mean);
  if (rewards.size() > 1 && std::sqrt(squares / (count - 1.0)) > kMinStd) return {};
  const double shown = std::round(rewards.front() * 10.0) / 10.0 + 0.0;  // no minus before a 0
  return {.is_kept = false, .reason = fmt::format("zero_std_{:.1f}", shown), .failure = ""};
}

GroupFilter::GroupFilter(const config::DynamicSamplingOptions& options, const config::RewardOptions& reward,
                         const session::RewardContext& context) {
  if (!options.is_built_in()) function_.emplace(filter_config(options, reward, context));
}

void GroupFilter::submit(std::vector<reward::GradeRequest> samples) {
  const uint64_t group = samples.front().group_id;
  if (function_) {
    group_of_[samples.front().sample_id] = group;
    function_->submit(std::move(samples));
    return;
  }
  std::vector<double> rewards;
  for (const reward::GradeRequest& sample : samples) rewards.push_back(sample.graded.value().reward);
  verdicts_[group] = judge_by_std(rewards);
}

std::map<uint64_t, GroupVerdict> GroupFilter::take() {
  if (!function_) return std::exchange(verdicts_, {});
  const base::Redaction redaction;  // reasons are what user code says, and go into metrics
  std::map<uint64_t, GroupVerdict> result;
  for (const reward::Grade& grade : function_->take_finished(0.0)) {
    const auto group = group_of_.find(grade.sample_id);
    if (group == group_of_.end()) continue;  // not the first of its group
    GroupVerdict verdict = verdict_of(grade);
    verdict.reason = redaction.apply(verdict.reason);
    verdict.failure = redaction.apply(verdict.failure);
    result[group->second] = std::move(verdict);
    group_of_.erase(group);
  }
  return result;
}

std::optional<int> GroupFilter::descriptor() const {
  return function_ ? std::optional(function_->descriptor()) : std::nullopt;
}

void GroupFilter::discard() {
  if (function_) function_->discard();
  group_of_.clear();
  verdicts_.clear();
}

void try_out_filter(const config::DynamicSamplingOptions& options, const config::RewardOptions& reward,
                    const session::RewardContext& context) {
  if (!options.is_on() || options.is_built_in()) return;
  reward::GraderConfig config = filter_config(options, reward, context);
  config.output_path.clear();
  const reward::Graders graders(config);
}

}  // namespace tandem::groups
