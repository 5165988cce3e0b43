// Which of the groups that are sampled one after the other make up a rollout: the first `wanted` that are kept, in the
// order in which they were drawn. When each is decided, and how many are under way beside it, changes nothing of that.
// No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem::run {

class GroupSelection {
 public:
  // `at_once` groups, at least `wanted`, are kept or undecided at once.
  GroupSelection(int64_t wanted, int64_t at_once);

  // How many groups may be drawn now. 0 when the rollout is full.
  int64_t num_to_draw() const;
  void draw();  // the next group is under way; groups count from 0

  // Whether the group may still become part of the rollout: fewer than `wanted` groups before it are kept.
  bool may_be_taken(size_t group) const { return group < end_of_useful_; }
  // Once for each group that may be taken. Groups that no longer may are excess from now on.
  void decide(size_t group, bool is_kept);

  // `wanted` groups are kept and all before the last of them are decided: that is the rollout.
  bool is_full() const { return num_taken_ == wanted_; }
  // The groups taken so far, ascending, and how many groups they were looked for in: once it is full, those up to the
  // last one taken; before, those decided without a gap.
  std::vector<size_t> taken() const;
  size_t num_judged() const { return num_judged_; }
  // Of these, how many in a row up to the last were dropped.
  int64_t num_dropped_in_a_row() const;
  size_t num_drawn() const { return states_.size(); }
  int64_t num_kept() const { return num_kept_; }  // also behind a gap

 private:
  enum class State : uint8_t { kUndecided, kKept, kDropped };

  void find_end();

  int64_t wanted_, at_once_;
  std::vector<State> states_;
  int64_t num_kept_ = 0, num_undecided_ = 0;  // of those that may be taken
  size_t num_judged_ = 0;
  int64_t num_taken_ = 0;  // kept ones among these
  size_t end_of_useful_;
};

}  // namespace tandem::run
