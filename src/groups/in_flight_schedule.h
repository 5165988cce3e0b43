// Decides which groups begin and which are trained on where completions go on over several rollouts (docs/ASYNC.md). A
// group is in flight from when it begins until it is taken or dropped. What it decides depends on the order of the
// calls alone. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "groups/schedule.h"

namespace tandem::groups {

class InFlightSchedule {
 public:
  struct Settings {
    int64_t wanted = 1;   // groups of a rollout
    int64_t at_once = 1;  // groups in flight, at least `wanted`
    // A group is taken at most so many rollouts after the one in which it began; unset: there is no such bound. With
    // one, at_once is at most wanted x (max_staleness + 1), or groups would become too old.
    std::optional<int64_t> max_staleness = {};
    SearchLimits limits = {};  // count the groups that are decided for one rollout
  };
  // `rollout` counts the rollouts that are finished.
  InFlightSchedule(const Settings& settings, int64_t rollout);

  // Adds a group that was in flight before, in ascending order: it began with the weights of `begun_in` rollouts, and
  // its samples have all ended (`is_kept`) or not.
  void put_back(size_t group, int64_t begun_in, bool is_kept);

  // Returns the least max_staleness with which all groups that were put back can be taken in time. Without a bound, 0.
  int64_t staleness_needed() const;

  // Says that groups that begin from now on are sampled by the weights of all finished rollouts. Until then they are of
  // those before: a rollout has been taken, and the run still trains on it.
  void weights_are_new() { version_ = rollout_; }

  // Returns how many groups may begin now.
  int64_t num_to_begin() const;
  void begin(size_t group);  // groups come in ascending order
  // Says that all samples of a group have ended, and whether the filter keeps it.
  void decide(size_t group, bool is_kept);

  // Returns whether the rollout is complete: `wanted` groups are kept, and among them are those that would become too
  // old. It is also over, with fewer groups, if a limit is reached and all groups that began have ended.
  bool is_over() const;
  // Returns the groups of the rollout: the first of those that are kept.
  std::vector<size_t> taken() const;
  // Takes groups that are kept, which ends the rollout.
  void take(const std::vector<size_t>& groups);

  const Settings& settings() const { return settings_; }
  std::vector<size_t> in_flight() const;  // ascending
  int64_t num_in_flight() const { return static_cast<int64_t>(in_flight_.size()); }
  int64_t num_kept() const { return num_kept_; }
  // Returns how many rollouts the weights were of with which a group in flight began.
  int64_t begun_in(size_t group) const { return in_flight_.at(group).begun_in; }
  bool contains(size_t group) const { return in_flight_.contains(group); }
  bool is_kept(size_t group) const { return in_flight_.at(group).is_kept; }
  int64_t rollout() const { return rollout_; }

 private:
  struct Group {
    int64_t begun_in = 0;
    bool is_kept = false;
  };
  bool leaves_too_many(const std::vector<size_t>& taken) const;
  bool is_at_limit() const;

  const Settings settings_;
  int64_t rollout_;                    // finished or taken rollouts
  int64_t version_;                    // rollouts that the weights of samplers are of
  std::map<size_t, Group> in_flight_;  // by number
  int64_t num_kept_ = 0;
  int64_t num_decided_ = 0, num_dropped_in_a_row_ = 0;
};

}  // namespace tandem::groups
