// Decides which of the groups that are sampled one after the other make up a rollout: the first `wanted` that are kept,
// in the order in which they were drawn, or fewer if a limit ends the search. The result depends neither on the order
// in which groups are decided nor on how many are sampled at a time. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace tandem::groups {

// Limits that end a search which finds too few groups: after that many groups, or that many dropped in a row.
struct SearchLimits {
  int64_t max_groups = std::numeric_limits<int64_t>::max();
  int64_t max_dropped_in_a_row = std::numeric_limits<int64_t>::max();
};

class Schedule {
 public:
  // `at_once` groups, at least `wanted`, are kept or undecided at once. Both limits are positive.
  Schedule(int64_t wanted, int64_t at_once, const SearchLimits& limits = {});

  // Returns how many groups may be drawn now, 0 when the search is over.
  int64_t num_to_draw() const;
  void draw();  // starts the next group; groups count from 0

  // Returns whether the group may still become part of the rollout: fewer than `wanted` groups before it are kept, and
  // no limit ended the search before it.
  bool may_be_taken(size_t group) const { return group < end_of_useful_; }
  // Call it once for each group that may be taken. Groups that no longer may are excess from now on.
  void decide(size_t group, bool is_kept);

  // Returns whether `wanted` groups are kept and all before the last of them are decided: that is the rollout.
  bool is_full() const { return num_taken_ == wanted_; }
  // Returns whether it is full, or a limit is reached and all groups before that are decided: the rollout is what was
  // taken.
  bool is_over() const { return is_full() || has_given_up_; }
  // Return the groups taken so far, ascending, and in how many groups they were found. Once it is full, these are the
  // groups up to the last one taken; before, the groups decided without a gap, up to the limit.
  std::vector<size_t> taken() const;
  size_t num_judged() const { return num_judged_; }
  size_t num_drawn() const { return states_.size(); }
  int64_t num_kept() const { return num_kept_; }  // also those after an undecided group

 private:
  enum class State : uint8_t { kUndecided, kKept, kDropped };

  void find_end();
  void judge();

  int64_t wanted_, at_once_;
  SearchLimits limits_;
  std::vector<State> states_;
  int64_t num_kept_ = 0, num_undecided_ = 0;  // among the groups that may be taken
  size_t num_judged_ = 0;
  int64_t num_taken_ = 0;             // kept groups among the judged ones
  int64_t num_dropped_in_a_row_ = 0;  // dropped in a row at the end of the judged groups
  bool has_given_up_ = false;
  size_t end_of_useful_;
};

}  // namespace tandem::groups
