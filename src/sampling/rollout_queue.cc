#include "sampling/rollout_queue.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::sampling {

void RolloutQueue::open(size_t index) {
  const size_t place = opened_.size();
  TANDEM_CHECK(places_.emplace(index, place).second, "group", index, "was opened before");
  opened_.push_back(index);
  waiting_.insert(place);
}

std::optional<size_t> RolloutQueue::pull(WorkerId worker) {
  if (waiting_.empty()) return std::nullopt;
  const size_t place = *waiting_.begin();
  waiting_.erase(waiting_.begin());
  loans_.emplace(place, worker);
  return opened_[place];
}

bool RolloutQueue::push(WorkerId worker, size_t index) {
  const auto place = places_.find(index);
  if (place == places_.end()) return false;
  const auto loan = loans_.find(place->second);
  if (loan == loans_.end() || loan->second != worker) return false;
  loans_.erase(loan);
  return true;
}

size_t RolloutQueue::lost(WorkerId worker) {
  size_t num_lost = 0;
  for (auto loan = loans_.begin(); loan != loans_.end();) {
    if (loan->second != worker) {
      ++loan;
      continue;
    }
    waiting_.insert(loan->first);
    loan = loans_.erase(loan);
    ++num_lost;
  }
  return num_lost;
}

std::optional<WorkerId> RolloutQueue::abort(size_t index) {
  const size_t place = places_.at(index);
  waiting_.erase(place);
  const auto loan = loans_.find(place);
  if (loan == loans_.end()) return std::nullopt;
  const WorkerId worker = loan->second;
  loans_.erase(loan);
  return worker;
}

void RolloutQueue::abort_all() {
  waiting_.clear();
  loans_.clear();
}

bool RolloutQueue::has_loans(WorkerId worker) const {
  return std::ranges::any_of(loans_, [&](const auto& loan) { return loan.second == worker; });
}

}  // namespace tandem::sampling
