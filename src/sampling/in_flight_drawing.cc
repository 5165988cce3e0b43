#include "sampling/in_flight_drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/message_text.h"

namespace tandem::sampling {

InFlightDrawing::InFlightDrawing(const RolloutRequest& request, groups::LengthHistory* lengths)
    : request_(request), asked_(*request.in_flight), in_flight_(*asked_.groups), lengths_(lengths) {
  TANDEM_CHECK(!in_flight_.pool.has_loans(), "samples of the rollout before are on loan");
  in_flight_.weights_are(asked_.weight_version);
  in_flight_.schedule.weights_are_new();
}

void InFlightDrawing::begin_groups(Begins when) {
  for (int64_t left = in_flight_.schedule.num_to_begin(); left > 0; --left) begin_group(when);
}

void InFlightDrawing::begin_group(Begins when) {
  const InFlightRequest::Drawn drawn = asked_.next_group();
  groups::GroupLength length;
  if (lengths_ != nullptr) length = lengths_->expected(*drawn.line->prompt, request_.sampling.max_new_tokens);
  if (when == Begins::kNow) {
    in_flight_.pool.open(drawn.group, *drawn.line, length);
  } else {
    in_flight_.pool.open_resting(drawn.group, *drawn.line, length);
  }
  in_flight_.schedule.begin(drawn.group);
}

void InFlightDrawing::decide_about(size_t group) {
  const bool is_kept = in_flight_.pool.group(group).graded.verdict.is_kept;
  in_flight_.schedule.decide(group, is_kept);
  if (is_kept) return;
  groups::GroupGrades& dropped = in_flight_.dropped[group];
  dropped = in_flight_.pool.take(group).graded;
  dropped.grades.clear();
}

TakenGroups InFlightDrawing::take() {
  TakenGroups taken = {.numbers = groups_to_take(), .groups = {}};
  FilterCounts filtered;
  for (const auto& [number, graded] : in_flight_.dropped) filtered.add(number, graded);
  for (const size_t number : taken.numbers) {
    taken.groups.push_back(in_flight_.pool.take(number));
    filtered.add(number, taken.groups.back().graded);
    if (lengths_ != nullptr) lengths_->remember(taken.groups.back());
  }
  in_flight_.schedule.take(taken.numbers);
  if (request_.dynamic) taken.filtered = filtered.result(std::ssize(taken.numbers), asked_.num_groups);
  taken.in_flight = numbers(taken);
  in_flight_.forget_old_versions();
  in_flight_.dropped.clear();
  num_phases_ = 0;
  return taken;
}

InFlightNumbers InFlightDrawing::numbers(const TakenGroups& taken) const {
  InFlightNumbers result;
  result.num_phases = num_phases_;
  for (const auto& [number, graded] : in_flight_.dropped) result.dropped.push_back(number);
  result.num_begun = asked_.num_begun();
  int64_t num_samples = 0, num_tokens = 0, sum_of_stalenesses = 0;
  for (const groups::Group& group : taken.groups) {
    int64_t oldest = 0;
    for (const groups::Member& member : group.members) {
      const rl::Sample& sample = member.sample;
      const auto end = std::ssize(sample.completion);
      std::set<int64_t> ages;
      for (size_t i = 0; i < sample.versions.size(); ++i) {
        const int64_t next = i + 1 < sample.versions.size() ? sample.versions[i + 1].begin : end;
        const int64_t age = in_flight_.age(sample.versions[i].version);
        result.ages[age] += next - sample.versions[i].begin;
        ages.insert(age);
      }
      ++num_samples;
      num_tokens += end;
      if (ages.empty()) continue;
      oldest = std::max(oldest, *ages.rbegin());
      result.num_partial += ages.size() > 1 ? 1 : 0;
      result.max_partial_span = std::max(result.max_partial_span, std::ssize(ages));
    }
    sum_of_stalenesses += oldest;
    result.max_staleness = std::max(result.max_staleness, oldest);
  }
  int64_t all_samples = num_samples, all_tokens = num_tokens;
  for (const size_t number : in_flight_.schedule.in_flight()) {
    result.in_flight.push_back(number);
    result.num_waiting += in_flight_.schedule.is_kept(number) ? 1 : 0;
    for (const groups::Member& member : in_flight_.pool.group(number).members) {
      ++all_samples;
      all_tokens += std::ssize(member.sample.completion);
    }
  }
  if (!taken.groups.empty())
    result.mean_staleness = static_cast<double>(sum_of_stalenesses) / static_cast<double>(taken.groups.size());
  if (num_samples > 0 && all_tokens > 0) {
    result.length_taken_over_begun = static_cast<double>(num_tokens) / static_cast<double>(num_samples) /
                                     (static_cast<double>(all_tokens) / static_cast<double>(all_samples));
  }
  return result;
}

void InFlightDrawing::show_progress(const Coordinator& coordinator, report::Report& report) const {
  report.progress(request_.title, std::min(in_flight_.schedule.num_kept(), asked_.num_groups), asked_.num_groups,
                  fmt::format("groups ended of {} in flight, {} tokens", in_flight_.schedule.num_in_flight(),
                              base::with_commas(coordinator.numbers().counted.stats.generated_tokens)));
}

// Groups that begin with a phase are the next ones in the data's order.
void PhaseDrawing::draw() {
  if (is_in_phase_ || is_over()) return;
  is_in_phase_ = true;
  ++num_phases_;
  begin_groups(Begins::kWithNextPhase);
  in_flight_.pool.begin_phase([this](size_t, size_t) { return asked_.phase_tokens; });
}

// The groups that ended in a phase are decided about at its end, in their order, so that it does not matter which of
// them was graded first.
void PhaseDrawing::decide(Coordinator& /*coordinator*/) {
  std::ranges::copy(in_flight_.pool.take_done(), std::back_inserter(ended_));
  if (!is_in_phase_ || !in_flight_.pool.is_idle()) return;
  is_in_phase_ = false;
  std::ranges::sort(ended_);
  for (const size_t group : std::exchange(ended_, {})) decide_about(group);
}

ReplayDrawing::ReplayDrawing(const RolloutRequest& request, groups::LengthHistory* lengths)
    : InFlightDrawing(request, lengths), log_(*asked_.log), scheduled_(*log_.of(in_flight_.schedule.rollout())) {}

void ReplayDrawing::draw() {
  if (num_phases_ > 0) return;
  ++num_phases_;
  const uint64_t version = asked_.weight_version;
  size_t num_begun = 0;
  for (const auto& begun : {log_.begun_by(version, scheduled_.rollout), scheduled_.dropped}) {
    if (!begun.empty()) num_begun = std::max(num_begun, begun.back() + 1);
  }
  while (asked_.num_begun() < static_cast<int64_t>(num_begun)) begin_group(Begins::kWithNextPhase);
  const auto n = static_cast<uint64_t>(request_.n_samples_per_prompt);
  in_flight_.pool.begin_phase([&](size_t group, size_t member) {
    const auto has = std::ssize(in_flight_.pool.group(group).members[member].sample.completion);
    return log_.tokens_of(group * n + member, version, has);
  });
}

void ReplayDrawing::decide(Coordinator& /*coordinator*/) {
  for (const size_t group : in_flight_.pool.take_done()) decide_about(group);
  if (num_phases_ == 0 || is_over_ || !in_flight_.pool.is_idle()) return;
  is_over_ = true;
  for (const size_t group : scheduled_.dropped) {
    if (!in_flight_.schedule.contains(group)) continue;  // it was dropped before the checkpoint
    in_flight_.dropped[group] = {
        .grades = {}, .verdict = {.is_kept = false, .reason = "replayed", .failure = {}}, .is_judged = true};
    in_flight_.schedule.decide(group, /*is_kept=*/false);
    in_flight_.pool.forget(group);
  }
}

std::vector<size_t> ReplayDrawing::groups_to_take() const {
  for (const size_t group : scheduled_.taken) {
    TANDEM_USER_CHECK(
        in_flight_.schedule.contains(group) && in_flight_.schedule.is_kept(group),
        fmt::format("--replay-schedule: rollout {} took group {}, which has not ended here: the log is of "
                    "a run with other flags or data",
                    scheduled_.rollout, group));
  }
  return scheduled_.taken;
}

LiveDrawing::LiveDrawing(const RolloutRequest& request, groups::LengthHistory* lengths)
    : InFlightDrawing(request, lengths) {
  in_flight_.pool.begin_phase();
}

void LiveDrawing::decide(Coordinator& /*coordinator*/) {
  for (const size_t group : in_flight_.pool.take_done()) decide_about(group);
}

}  // namespace tandem::sampling
