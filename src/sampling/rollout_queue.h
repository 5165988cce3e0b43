// Groups that several workers sample: each is lent to one worker at a time, and what it makes of it is used once. The
// loans of a worker that is lost go to others. One thread, no torch: who talks to the workers is rollout_workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace tandem::sampling {

using WorkerId = int64_t;

class RolloutQueue {
 public:
  // A group that is to be sampled, behind all that wait. Its index is new.
  void open(size_t index);
  // The next group, on loan to this worker until it is pushed. nullopt: none waits.
  std::optional<size_t> pull(WorkerId worker);
  // Whether what the worker has made of the group is to be used: it has the loan. The group is then done.
  bool push(WorkerId worker, size_t index);
  // The worker is gone: its loans are the next ones that are pulled, in the order in which groups were opened. Returns
  // how many there were.
  size_t lost(WorkerId worker);
  // The group is not wanted any more. Returns who has it on loan, if anybody.
  std::optional<WorkerId> abort(size_t index);
  // Nothing is wanted any more.
  void abort_all();

  int64_t num_waiting() const { return std::ssize(waiting_); }
  int64_t num_on_loan() const { return std::ssize(loans_); }
  bool has_loans(WorkerId worker) const;

 private:
  // Groups by their place in the order of open(), and back.
  std::vector<size_t> opened_;
  std::map<size_t, size_t> places_;
  std::set<size_t> waiting_;          // places
  std::map<size_t, WorkerId> loans_;  // by place
};

}  // namespace tandem::sampling
