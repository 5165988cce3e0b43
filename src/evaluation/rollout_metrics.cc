#include "evaluation/rollout_metrics.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/message_text.h"
#include "rl/metrics.h"

namespace tandem::evaluation {

namespace {

// Returns the value of the rule's reward for a sample, before its weight; nullopt where it does not apply.
std::optional<double> judged_value(const sampling::Rollout& rollout, size_t i, const config::PassRule& rule) {
  if (rollout.grades.empty() || rollout.grades[i].parts.empty()) return rollout.samples[i].reward;
  const std::vector<reward::RewardPart>& parts = rollout.grades[i].parts;
  const auto part = std::ranges::find(parts, rule.reward, &reward::RewardPart::name);
  return part == parts.end() ? std::nullopt : part->reward;
}

// The classes of failures (docs/REWARDS.md) that say who is at fault.
constexpr const char* kNotApplying = "none";
constexpr const char* kServiceFailure = "service";
constexpr const char* kServiceRefusal = "http";

// Returns whether the sample has no reward because the reward says that it does not apply to it: nothing failed.
bool is_not_applied_to(const sampling::Rollout& rollout, size_t i) {
  return rollout.samples[i].grading_failed && i < rollout.grades.size() &&
         rollout.grades[i].reason_class == kNotApplying;
}

// Returns "6 have the reward -1", "1 has the reward -1", "6 have rewards from -2 to -0.5".
std::string rewards_text(const std::vector<double>& rewards) {
  const auto [lowest, highest] = std::ranges::minmax_element(rewards);
  const std::string from = fmt::format("{:g}", *lowest), to = fmt::format("{:g}", *highest);
  const std::string has = rewards.size() == 1 ? "has" : "have";
  if (from == to) return fmt::format("{} {} the reward {}", rewards.size(), has, from);
  return fmt::format("{} {} rewards from {} to {}", rewards.size(), has, from, to);
}

constexpr int64_t kMostAges = 9;  // ages from here on are counted together

std::string age_name(int64_t age) {
  return "rollout/staleness_hist/" + (age < kMostAges ? std::to_string(age) : std::string("more"));
}

// Adds what endpoints were asked: nothing where no request came.
void add_endpoint(const sampling::Rollout& rollout, report::Metrics& metrics) {
  rl::EndpointCounts sum;
  double sequences = 0.0, num_samples = 0.0;
  for (const rl::Sample& sample : rollout.samples) {
    sum.answers += sample.endpoint.answers;
    sum.restarts += sample.endpoint.restarts;
    sum.untrained += sample.endpoint.untrained;
    sum.refused += sample.endpoint.refused;
    if (sample.num_turns == 0) continue;
    sequences += static_cast<double>(sample.sequence_begins.size()) + (sample.num_after_prompt() > 0 ? 1.0 : 0.0);
    num_samples += 1.0;
  }
  if (sum.answers + sum.refused == 0) return;
  metrics["multi_turn/endpoint/answers"] = static_cast<double>(sum.answers);
  metrics["multi_turn/endpoint/restarts"] = static_cast<double>(sum.restarts);
  metrics["multi_turn/endpoint/untrained"] = static_cast<double>(sum.untrained);
  metrics["multi_turn/endpoint/refused"] = static_cast<double>(sum.refused);
  if (num_samples > 0) metrics["multi_turn/endpoint/sequences_mean"] = sequences / num_samples;
}

// Returns the metrics of dynamic sampling: rollout/dynamic_filter/*, and fault/dynamic_filter if the filter failed.
// There are none without dynamic sampling.
report::Metrics filter_metrics(const sampling::Rollout& rollout) {
  if (!rollout.filtered) return {};
  const sampling::FilteredGroups& filtered = *rollout.filtered;
  report::Metrics metrics = {{"rollout/dynamic_filter/groups", static_cast<double>(filtered.num_groups)},
                             {"rollout/dynamic_filter/dropped", static_cast<double>(filtered.num_dropped())},
                             {"perf/dynamic_filter/excess_groups", static_cast<double>(filtered.num_excess)},
                             {"perf/dynamic_filter/aborted_groups", static_cast<double>(filtered.num_aborted)}};
  for (const auto& [reason, count] : filtered.dropped) {
    metrics["rollout/dynamic_filter/drop_" + reason] = static_cast<double>(count);
  }
  if (filtered.num_missing() > 0)
    metrics["rollout/dynamic_filter/missing_groups"] = static_cast<double>(filtered.num_missing());
  if (filtered.has_mean_reward) metrics["rollout/dynamic_filter/raw_reward"] = filtered.mean_reward;
  if (filtered.num_failures > 0) metrics["fault/dynamic_filter"] = static_cast<double>(filtered.num_failures);
  return metrics;
}

// Returns whether the user's function made the samples, in turns with the engine.
bool has_turns(const sampling::Rollout& rollout) {
  const auto is_failure = [](const reward::Grade& grade) { return grade.reason_class == sampling::kGenerateFailure; };
  return std::ranges::any_of(rollout.samples, [](const rl::Sample& sample) { return sample.num_turns > 0; }) ||
         std::ranges::any_of(rollout.grades, is_failure);
}

// Returns the metrics of samples that the user's function made: multi_turn/*, under slime's names,
// fault/custom_generate if the function failed, and perf/* of its processes and of the keys and values that are kept
// between turns. Empty for other samples.
report::Metrics turn_metrics(const sampling::Rollout& rollout) {
  report::Metrics metrics;
  if (!has_turns(rollout)) return metrics;
  std::vector<double> turns, lengths, trained;
  for (const rl::Sample& sample : rollout.samples) {
    if (sample.num_turns == 0) continue;  // the function failed for it, and it has no turns to count
    turns.push_back(static_cast<double>(sample.num_turns));
    lengths.push_back(static_cast<double>(sample.completion.size()));
    trained.push_back(static_cast<double>(std::ranges::count(sample.loss_mask, uint8_t{1})));
  }
  const auto add = [&](const std::string& name, const std::vector<double>& values) {
    if (values.empty()) return;
    metrics["multi_turn/" + name + "_mean"] =
        std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
    metrics["multi_turn/" + name + "_max"] = std::ranges::max(values);
    metrics["multi_turn/" + name + "_min"] = std::ranges::min(values);
  };
  add("multi_turn_metric/round_number", turns);
  add("raw_response_length/response_length", lengths);
  add("wo_obs_response_length/response_length", trained);
  add_endpoint(rollout, metrics);
  const double num_failed = static_cast<double>(std::ranges::count_if(
      rollout.grades, [](const reward::Grade& grade) { return grade.reason_class == sampling::kGenerateFailure; }));
  if (num_failed > 0) metrics["fault/custom_generate"] = num_failed;
  if (!rollout.is_sampled) return metrics;
  metrics["perf/kept_kv_tokens"] = static_cast<double>(rollout.stats.kept_tokens);
  metrics["perf/kept_kv_dropped"] = static_cast<double>(rollout.stats.kept_dropped);
  if (rollout.num_generate_restarts > 0)
    metrics["perf/generate_restarts"] = static_cast<double>(rollout.num_generate_restarts);
  if (rollout.num_generate_repeated > 0)
    metrics["perf/generate_repeated"] = static_cast<double>(rollout.num_generate_repeated);
  return metrics;
}

}  // namespace

report::Metrics logged_metrics(const sampling::Rollout& rollout) {
  std::map<std::string, std::vector<double>> values;
  for (const reward::Grade& grade : rollout.grades) {
    for (const auto& [name, logged] : grade.metrics) {
      values[name].insert(values[name].end(), logged.begin(), logged.end());
    }
  }
  report::Metrics metrics;
  for (const auto& [name, all] : values) {
    metrics[name] = std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
  }
  return metrics;
}

report::Metrics part_metrics(const sampling::Rollout& rollout) {
  std::map<std::string, std::vector<double>> values;
  for (const reward::Grade& grade : rollout.grades) {
    for (const reward::RewardPart& part : grade.parts) {
      if (part.reward) values[part.name].push_back(*part.reward);
    }
  }
  report::Metrics metrics;
  for (const auto& [name, rewards] : values) {
    const auto count = static_cast<double>(rewards.size());
    const double mean = std::accumulate(rewards.begin(), rewards.end(), 0.0) / count;
    metrics[name + "/mean"] = mean;
    if (rewards.size() < 2) continue;
    double squares = 0.0;
    for (const double reward : rewards) squares += (reward - mean) * (reward - mean);
    metrics[name + "/std"] = std::sqrt(squares / (count - 1.0));
  }
  return metrics;
}

report::Metrics pass_metrics(const sampling::Rollout& rollout, const config::PassRule& rule) {
  std::vector<rl::PassResult> results;
  for (size_t i = 0; i < rollout.samples.size(); ++i) {
    const rl::Sample& sample = rollout.samples[i];
    if (!sample.has_reward) continue;
    const std::optional<double> value = judged_value(rollout, i, rule);
    // The rule's reward does not apply to the sample.
    if (!value && !sample.grading_failed) continue;
    results.push_back({.group_id = sample.group_id, .passed = !sample.grading_failed && rule.passes(*value)});
  }
  return rl::pass_rates(results);
}

std::optional<double> highest_without_pass(const sampling::Rollout& rollout, const config::PassRule& rule) {
  std::optional<double> lowest, highest;
  for (size_t i = 0; i < rollout.samples.size(); ++i) {
    if (!rollout.samples[i].has_reward || rollout.samples[i].grading_failed) continue;
    const std::optional<double> value = judged_value(rollout, i, rule);
    if (!value) continue;
    lowest = std::min(lowest.value_or(*value), *value);
    highest = std::max(highest.value_or(*value), *value);
  }
  return highest && *highest > *lowest && !rule.passes(*highest) ? highest : std::nullopt;
}

report::Metrics rollout_report(const sampling::Rollout& rollout, bool per_token,
                               const std::optional<config::PassRule>& pass, rl::SignalOf signal, bool count_removed) {
  const std::vector<const rl::Sample*> samples = rollout.views();
  report::Metrics metrics;
  for (const auto& [name, value] : rl::rollout_metrics(samples, per_token, signal, count_removed)) {
    metrics["rollout/" + name] = value;
  }
  if (pass) {
    for (const auto& [name, value] : pass_metrics(rollout, *pass)) metrics["passrate/" + name] = value;
  }
  std::map<std::string, std::pair<double, int64_t>> extras;
  for (const reward::Grade& grade : rollout.grades) {
    for (const auto& [name, value] : grade.extras) {
      extras[name].first += value;
      ++extras[name].second;
    }
  }
  for (const auto& [name, sum] : extras) {
    metrics["rollout/reward_" + name] = sum.first / static_cast<double>(sum.second);
  }
  for (const auto& [name, value] : logged_metrics(rollout)) metrics["rollout/reward_metric/" + name] = value;
  for (const auto& [name, value] : part_metrics(rollout)) metrics["rollout/rewards/" + name] = value;
  metrics.merge(failure_metrics(rollout, "rollout"));
  if (rollout.num_unnamed > 0) metrics["fault/reward_names"] = static_cast<double>(rollout.num_unnamed);
  if (rollout.num_lost_workers > 0) metrics["fault/lost_workers"] = static_cast<double>(rollout.num_lost_workers);
  if (rollout.num_repeated > 0) metrics["rollout/grader_repeated"] = static_cast<double>(rollout.num_repeated);
  metrics.merge(filter_metrics(rollout));
  metrics.merge(turn_metrics(rollout));
  metrics.merge(in_flight_metrics(rollout));
  // The engine's numbers depend on clocks in three cases: with dynamic sampling they count what happened to be under
  // way too, turns meet as they come, and processes take groups from each other.
  const bool is_timed = rollout.filtered || has_turns(rollout) || rollout.num_ranks > 1 || rollout.num_workers > 0;
  const std::string engine = is_timed ? "perf/" : "rollout/";
  const double reused_tokens = static_cast<double>(rollout.stats.shared_prompt_tokens + rollout.stats.kept_tokens);
  const double prompt_tokens = reused_tokens + static_cast<double>(rollout.stats.prefill_tokens);
  if (prompt_tokens > 0) metrics[engine + "prefix_cache_hit_rate"] = reused_tokens / prompt_tokens;
  metrics[engine + "preemptions"] = static_cast<double>(rollout.stats.preemptions);
  if (rollout.stats.draft_steps > 0) {
    const auto right = static_cast<double>(rollout.stats.right_drafts);
    metrics[engine + "spec_accept_rate"] = right / static_cast<double>(rollout.stats.draft_tokens);
    metrics[engine + "spec_accept_length"] = 1.0 + right / static_cast<double>(rollout.stats.draft_steps);
  }
  return metrics;
}

report::Metrics in_flight_metrics(const sampling::Rollout& rollout) {
  if (!rollout.in_flight) return {};
  const sampling::InFlightNumbers& numbers = *rollout.in_flight;
  report::Metrics metrics = {{"rollout/phases", static_cast<double>(numbers.num_phases)},
                             {"rollout/in_flight", static_cast<double>(numbers.in_flight.size())},
                             {"rollout/waiting_groups", static_cast<double>(numbers.num_waiting)},
                             {"rollout/staleness/mean", numbers.mean_staleness},
                             {"rollout/staleness/max", static_cast<double>(numbers.max_staleness)},
                             {"rollout/max_partial_span", static_cast<double>(numbers.max_partial_span)},
                             {"rollout/length_taken_over_begun", numbers.length_taken_over_begun}};
  if (!rollout.samples.empty()) {
    metrics["rollout/partial_ratio"] =
        static_cast<double>(numbers.num_partial) / static_cast<double>(rollout.samples.size());
  }
  // A histogram is the same numbers in each record, so that the page can draw them one over the other.
  for (int64_t age = 0; age <= kMostAges; ++age) metrics[age_name(age)] = 0.0;
  for (const auto& [age, tokens] : numbers.ages) metrics[age_name(age)] += static_cast<double>(tokens);
  const double generated = static_cast<double>(rollout.stats.generated_tokens);
  if (generated > 0) metrics["perf/recompute_share"] = static_cast<double>(rollout.stats.resumed_tokens) / generated;
  return metrics;
}

report::Metrics rollout_times(const sampling::Rollout& rollout) {
  size_t tokens = 0, trained = 0, longest = 0;
  for (const rl::Sample& sample : rollout.samples) {
    if (sample.is_given) continue;
    tokens += sample.completion.size();
    trained += static_cast<size_t>(std::ranges::count(sample.loss_mask, uint8_t{1}));
    longest = std::max(longest, sample.completion.size());
  }
  const double seconds = std::max(rollout.seconds, 1e-9);
  const double device_seconds = seconds * static_cast<double>(rollout.num_ranks);
  report::Metrics times = {{"perf/rollout_time", rollout.seconds},
                           {"perf/tokens_per_gpu_per_sec", static_cast<double>(tokens) / device_seconds},
                           {"perf/effective_tokens_per_gpu_per_sec", static_cast<double>(trained) / device_seconds},
                           {"perf/longest_sample_tokens_per_sec", static_cast<double>(longest) / seconds}};
  if (rollout.num_ranks > 1 || rollout.num_workers > 0) {
    times["perf/rollout_ranks"] = static_cast<double>(rollout.num_ranks);
    times["perf/rollout_idle_share"] = rollout.idle_share;
  }
  if (rollout.pause_seconds) times["perf/weights_pause_time"] = *rollout.pause_seconds;
  if (rollout.num_restarts > 0) times["perf/grader_restarts"] = static_cast<double>(rollout.num_restarts);
  return times;
}

report::Metrics failure_metrics(const sampling::Rollout& rollout, const std::string& prefix) {
  report::Metrics metrics = {{prefix + "/grader_failed", static_cast<double>(rollout.num_failed)}};
  for (const reward::Grade& grade : rollout.grades) {
    if (grade.failed) metrics[prefix + "/grader_failed/" + grade.reason_class] += 1.0;
  }
  if (rollout.num_dropped > 0) metrics[prefix + "/dropped"] = static_cast<double>(rollout.num_dropped);
  return metrics;
}

int64_t num_not_applied_to(const sampling::Rollout& rollout) {
  int64_t count = 0;
  for (size_t i = 0; i < rollout.samples.size(); ++i) count += is_not_applied_to(rollout, i) ? 1 : 0;
  return count;
}

std::string first_failed(const sampling::Rollout& rollout) {
  for (size_t i = 0; i < rollout.samples.size(); ++i) {
    if (!rollout.samples[i].grading_failed || is_not_applied_to(rollout, i)) continue;
    return fmt::format("sample {}: {}", rollout.samples[i].sample_id, rollout.grades.at(i).reason);
  }
  return "";
}

bool failed_for_environment(const sampling::Rollout& rollout) {
  const auto is_failure = [](const reward::Grade& grade) { return grade.failed && grade.reason_class != kNotApplying; };
  const auto is_of_user = [&](const reward::Grade& grade) { return is_failure(grade) && !grade.is_of_environment(); };
  return std::ranges::any_of(rollout.grades, is_failure) && std::ranges::none_of(rollout.grades, is_of_user);
}

rl::FailureCauses failure_causes(const sampling::Rollout& rollout) {
  rl::FailureCauses causes;
  for (const reward::Grade& grade : rollout.grades) {
    if (!grade.failed) continue;
    if (grade.reason_class == kNotApplying) ++causes.num_not_applied_to;
    if (grade.reason_class == sampling::kGenerateFailure) ++causes.num_not_made;
    if (grade.reason_class == kServiceFailure || grade.reason_class == kServiceRefusal) ++causes.num_not_served;
  }
  return causes;
}

std::string what_failed(const sampling::Rollout& rollout) {
  const int64_t num_generations = failure_causes(rollout).num_not_made;
  if (num_generations == 0) return "grading";
  return num_generations == rollout.num_failed - num_not_applied_to(rollout)
             ? "--custom-generate-function-path"
             : "grading, or --custom-generate-function-path,";
}

void warn_of_failures(const sampling::Rollout& rollout, const std::string& title) {
  int64_t num_failed = 0, num_dropped = 0;
  std::vector<double> rewards;
  for (size_t i = 0; i < rollout.samples.size(); ++i) {
    const rl::Sample& sample = rollout.samples[i];
    if (!sample.grading_failed || is_not_applied_to(rollout, i)) continue;
    ++num_failed;
    if (sample.has_reward) {
      rewards.push_back(sample.reward);
    } else {
      ++num_dropped;
    }
  }
  if (num_failed == 0) return;
  std::vector<std::string> fates;
  if (!rewards.empty()) fates.push_back(rewards_text(rewards) + " (--rm-failure-reward)");
  if (num_dropped > 0) {
    fates.push_back(
        fmt::format("{} {} left out", num_dropped, num_dropped == 1 ? "has none and is" : "have none and are"));
  }
  base::log_warning("{}: {} failed for {} of {}, of which {}; the first: {}", title, what_failed(rollout), num_failed,
                    base::counted(std::ssize(rollout.samples), "sample"), fmt::join(fates, " and "),
                    first_failed(rollout));
}

void warn_of_filter(const sampling::Rollout& rollout, const std::string& title) {
  if (!rollout.filtered || rollout.filtered->num_failures == 0) return;
  const int64_t num_failures = rollout.filtered->num_failures;
  base::log_warning("{}: the filter failed for {} of {}, which {} kept (fault/dynamic_filter); the first: {}", title,
                    num_failures, base::counted(rollout.filtered->num_judged, "group"),
                    num_failures == 1 ? "is" : "are", rollout.filtered->first_failure);
}

void warn_of_large_rewards(const sampling::Rollout& rollout, int64_t rollout_id) {
  const auto large = std::ranges::find_if(rollout.samples, [](const rl::Sample& sample) {
    return sample.has_reward && !std::isfinite(sample.reward * sample.reward);
  });
  if (large == rollout.samples.end()) return;
  base::log_warning(
      "rollout {}: the reward of sample {} is {:g}; of numbers that large no variance can be taken, and a loss with "
      "them may be no number: let the reward return smaller ones",
      rollout_id + 1, large->sample_id, large->reward);
}

}  // namespace tandem::evaluation
