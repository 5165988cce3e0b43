#include "run/group_selection.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace tandem::run {

GroupSelection::GroupSelection(int64_t wanted, int64_t at_once)
    : wanted_(wanted), at_once_(at_once), end_of_useful_(std::numeric_limits<size_t>::max()) {
  TANDEM_CHECK(wanted > 0 && at_once >= wanted, wanted, at_once);
}

int64_t GroupSelection::num_to_draw() const {
  // With enough kept ones, only those before the last of them are waited for.
  if (num_kept_ >= wanted_) return 0;
  return at_once_ - num_kept_ - num_undecided_;
}

void GroupSelection::draw() {
  states_.push_back(State::kUndecided);
  ++num_undecided_;
}

void GroupSelection::decide(size_t group, bool is_kept) {
  TANDEM_CHECK(group < states_.size() && may_be_taken(group) && states_[group] == State::kUndecided, group);
  states_[group] = is_kept ? State::kKept : State::kDropped;
  --num_undecided_;
  num_kept_ += is_kept ? 1 : 0;
  if (num_kept_ >= wanted_) find_end();
  while (num_judged_ < std::min(states_.size(), end_of_useful_) && states_[num_judged_] != State::kUndecided) {
    if (states_[num_judged_++] == State::kKept) ++num_taken_;
  }
}

void GroupSelection::find_end() {
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

std::vector<size_t> GroupSelection::taken() const {
  std::vector<size_t> groups;
  for (size_t i = 0; i < num_judged_; ++i) {
    if (states_[i] == State::kKept) groups.push_back(i);
  }
  return groups;
}

int64_t GroupSelection::num_dropped_in_a_row() const {
  size_t i = num_judged_;
  while (i > 0 && states_[i - 1] == State::kDropped) --i;
  return static_cast<int64_t>(num_judged_ - i);
}

}  // namespace tandem::run
