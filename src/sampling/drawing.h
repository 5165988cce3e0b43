// Draws the groups of one rollout into a pool, decides about them, and takes them out of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "report/report.h"
#include "sampling/coordinator.h"
#include "sampling/group_pool.h"
#include "sampling/rollout.h"
#include "sampling/rollout_request.h"

namespace tandem::sampling {

// Remembers how long the completions of each prompt were when it was sampled last, so that the longest can begin first,
// and whether they were alike, so that those of certain length are not spread.
class LengthHistory {
 public:
  void remember(const Group& group);
  // Returns what is expected of a prompt's group: what it had last, else what an average group had. Before anything has
  // been sampled, a completion is taken to have a quarter of the tokens that it may have. A length is certain if the
  // completions of the prompt were alike or, for a prompt that was not sampled, if all completions were.
  GroupLength expected(const rl::Prompt& prompt, int64_t max_new_tokens) const;

 private:
  struct Range {  // of completions, in tokens
    int64_t shortest = std::numeric_limits<int64_t>::max(), longest = 0;
    bool is_narrow() const;
  };
  std::unordered_map<const rl::Prompt*, Range> last_;  // of each prompt
  Range all_;                                          // of all that were ever sampled
  int64_t sum_ = 0;                                    // of the longest of each prompt
};

// The groups of a rollout, taken out of the pool, and how they were found.
struct TakenGroups {
  std::vector<size_t> numbers;  // ascending
  std::vector<Group> groups;
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
std::unique_ptr<Drawing> make_drawing(const RolloutRequest& request, GroupPool& pool, LengthHistory* lengths);

// Counts groups, taken or dropped, for the numbers of dynamic sampling.
class FilterCounts {
 public:
  void add(uint64_t group_id, const GroupGrades& group);
  // Returns the counts, of which `num_kept` groups were taken.
  FilteredGroups result(int64_t num_kept, int64_t num_wanted) const;

 private:
  FilteredGroups counts_;
  double reward_sum_ = 0.0;
  int64_t num_rewarded_ = 0;
};

}  // namespace tandem::sampling
