#include "groups/schedule.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace tandem::groups {

Schedule::Schedule(int64_t wanted, int64_t at_once, const SearchLimits& limits)
    : wanted_(wanted), at_once_(at_once), limits_(limits), end_of_useful_(std::numeric_limits<size_t>::max()) {
  TANDEM_CHECK(wanted > 0 && at_once >= wanted, wanted, at_once);
  TANDEM_CHECK(limits.max_groups > 0 && limits.max_dropped_in_a_row > 0, limits.max_groups,
               limits.max_dropped_in_a_row);
}

int64_t Schedule::num_to_draw() const {
  // Once enough groups are kept, only the groups before the last of them are waited for.
  if (num_kept_ >= wanted_ || has_given_up_) return 0;
  return std::min(at_once_ - num_kept_ - num_undecided_, limits_.max_groups - std::ssize(states_));
}

void Schedule::draw() {
  states_.push_back(State::kUndecided);
  ++num_undecided_;
}

void Schedule::decide(size_t group, bool is_kept) {
  TANDEM_CHECK(group < states_.size() && may_be_taken(group) && states_[group] == State::kUndecided, group);
  states_[group] = is_kept ? State::kKept : State::kDropped;
  --num_undecided_;
  num_kept_ += is_kept ? 1 : 0;
  if (num_kept_ >= wanted_) find_end();
  judge();
}

// Goes through the groups in their order, so that a limit ends the search at the same group whenever they are decided.
void Schedule::judge() {
  while (!is_over() && num_judged_ < states_.size() && states_[num_judged_] != State::kUndecided) {
    const bool is_kept = states_[num_judged_++] == State::kKept;
    num_taken_ += is_kept ? 1 : 0;
    num_dropped_in_a_row_ = is_kept ? 0 : num_dropped_in_a_row_ + 1;
    has_given_up_ = !is_full() && (static_cast<int64_t>(num_judged_) >= limits_.max_groups ||
                                   num_dropped_in_a_row_ >= limits_.max_dropped_in_a_row);
  }
  if (!has_given_up_) return;
  end_of_useful_ = num_judged_;
  num_kept_ = num_taken_;
  num_undecided_ = 0;
}

void Schedule::find_end() {
  int64_t kept = 0, undecided = 0;
  size_t end = 0;
  for (; kept < wanted_; ++end) {
    kept += states_[end] == State::kKept ? 1 : 0;
    undecided += states_[end] == State::kUndecided ? 1 : 0;
  }
  end_of_useful_ = end;
  num_kept_ = kept;
  num_undecided_ = undecided;
}

std::vector<size_t> Schedule::taken() const {
  std::vector<size_t> groups;
  for (size_t i = 0; i < num_judged_; ++i) {
    if (states_[i] == State::kKept) groups.push_back(i);
  }
  return groups;
}

}  // namespace tandem::groups
