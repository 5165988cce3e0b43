// Draws the groups of one rollout into a pool, decides about them, and takes them out of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "groups/group_pool.h"
#include "groups/length_history.h"
#include "report/report.h"
#include "sampling/coordinator.h"
#include "sampling/rollout.h"
#include "sampling/rollout_request.h"

namespace tandem::sampling {

// The groups of a rollout, taken out of the pool, and how they were found.
struct TakenGroups {
  std::vector<size_t> numbers;  // ascending
  std::vector<groups::Group> groups;
  std::optional<FilteredGroups> filtered = {};
  std::optional<InFlightNumbers> in_flight = {};
};

class Drawing {
 public:
  virtual ~Drawing() = default;

  // Draws the groups that may be drawn now, and makes what rests wait again.
  virtual void draw() = 0;
  // Decides about groups that are done, and ends those that can no longer be taken.
  virtual void decide(Coordinator& coordinator) = 0;
  virtual bool is_over() const = 0;
  // Takes the groups of the rollout, which is over, and remembers their lengths.
  virtual TakenGroups take() = 0;
  virtual void show_progress(const Coordinator& coordinator, report::Report& report) const = 0;
};

// Returns the drawing of a rollout: in phases, or whole groups until enough of them are kept. All arguments are
// borrowed; without lengths the order of groups gains nothing.
std::unique_ptr<Drawing> make_drawing(const RolloutRequest& request, groups::GroupPool& pool,
                                      groups::LengthHistory* lengths);

// Counts groups, taken or dropped, for the numbers of dynamic sampling.
class FilterCounts {
 public:
  void add(uint64_t group_id, const groups::GroupGrades& group);
  // Returns the counts, of which `num_kept` groups were taken.
  FilteredGroups result(int64_t num_kept, int64_t num_wanted) const;

 private:
  FilteredGroups counts_;
  double reward_sum_ = 0.0;
  int64_t num_rewarded_ = 0;
};

}  // namespace tandem::sampling
