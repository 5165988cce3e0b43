#include "groups/in_flight_schedule.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::groups {

InFlightSchedule::InFlightSchedule(const Settings& settings, int64_t rollout)
    : settings_(settings), rollout_(rollout), version_(rollout) {
  TANDEM_CHECK(settings.wanted > 0 && settings.at_once >= settings.wanted, settings.wanted, settings.at_once);
  TANDEM_CHECK(!settings.max_staleness || settings.at_once <= settings.wanted * (*settings.max_staleness + 1),
               settings.at_once, settings.max_staleness.value_or(0));
}

void InFlightSchedule::put_back(size_t group, int64_t begun_in, bool is_kept) {
  TANDEM_CHECK(begun_in <= rollout_, begun_in, rollout_);
  TANDEM_CHECK(in_flight_.empty() || in_flight_.rbegin()->first < group, group);
  in_flight_[group] = {.begun_in = begun_in, .is_kept = is_kept};
  num_kept_ += is_kept ? 1 : 0;
}

int64_t InFlightSchedule::staleness_needed() const {
  int64_t needed = 0, count = 0;
  if (!settings_.max_staleness) return needed;
  for (const auto& [group, state] : in_flight_) {  // ascending by when they are due
    const int64_t later_rollouts = count++ / settings_.wanted;
    needed = std::max(needed, rollout_ + later_rollouts - state.begun_in);
  }
  return needed;
}

int64_t InFlightSchedule::num_to_begin() const {
  if (is_at_limit()) return 0;
  int64_t most = settings_.at_once;
  // More groups would not all be taken in time.
  if (settings_.max_staleness)
    most = std::min(most, settings_.wanted * (version_ + *settings_.max_staleness + 1 - rollout_));
  const int64_t room = std::max<int64_t>(most - num_in_flight(), 0);
  // Each group that begins may be one more that is decided for this rollout.
  const int64_t undecided = num_in_flight() - num_kept_;
  return std::min(room, std::max<int64_t>(settings_.limits.max_groups - num_decided_ - undecided, 0));
}

void InFlightSchedule::begin(size_t group) { put_back(group, version_, /*is_kept=*/false); }

void InFlightSchedule::decide(size_t group, bool is_kept) {
  const auto found = in_flight_.find(group);
  TANDEM_CHECK(found != in_flight_.end() && !found->second.is_kept, group);
  ++num_decided_;
  num_dropped_in_a_row_ = is_kept ? 0 : num_dropped_in_a_row_ + 1;
  if (is_kept) {
    found->second.is_kept = true;
    ++num_kept_;
  } else {
    in_flight_.erase(found);
  }
}

// A group that began with the weights of b rollouts has to be taken in rollout b + max_staleness at the latest, and
// each rollout takes `wanted`. So of the groups that are due j rollouts from now or earlier, this one must leave no
// more than j x wanted.
bool InFlightSchedule::leaves_too_many(const std::vector<size_t>& taken) const {
  if (!settings_.max_staleness) return false;
  int64_t left = 0;
  auto next_taken = taken.begin();
  for (const auto& [group, state] : in_flight_) {  // ascending by when they are due
    if (next_taken != taken.end() && *next_taken == group) {
      ++next_taken;
    } else if (++left > (state.begun_in + *settings_.max_staleness - rollout_) * settings_.wanted) {
      return true;
    }
  }
  return false;
}

bool InFlightSchedule::is_at_limit() const {
  return num_decided_ >= settings_.limits.max_groups || num_dropped_in_a_row_ >= settings_.limits.max_dropped_in_a_row;
}

bool InFlightSchedule::is_over() const {
  if (num_kept_ < settings_.wanted) return is_at_limit() && num_kept_ == num_in_flight();
  return !leaves_too_many(taken());
}

std::vector<size_t> InFlightSchedule::in_flight() const {
  std::vector<size_t> groups;
  for (const auto& [group, state] : in_flight_) groups.push_back(group);
  return groups;
}

std::vector<size_t> InFlightSchedule::taken() const {
  std::vector<size_t> groups;
  for (const auto& [group, state] : in_flight_) {
    if (std::ssize(groups) == settings_.wanted) break;
    if (state.is_kept) groups.push_back(group);
  }
  return groups;
}

void InFlightSchedule::take(const std::vector<size_t>& groups) {
  for (const size_t group : groups) {
    TANDEM_CHECK(is_kept(group), group);
    in_flight_.erase(group);
    --num_kept_;
  }
  num_decided_ = num_dropped_in_a_row_ = 0;
  ++rollout_;
}

}  // namespace tandem::groups
