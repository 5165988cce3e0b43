// Decides whether a group is trained on (--dynamic-sampling-filter-path): if its rewards differ, or as a Python
// function says, which runs in a process of its own that is watched and confined like those of rewards. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/dynamic_sampling_options.h"
#include "config/reward_options.h"
#include "reward/graders.h"
#include "session/grader_setup.h"

namespace tandem::groups {

struct GroupVerdict {
  bool is_kept = true;
  std::string reason;   // why the group was dropped; part of a metric's name
  std::string failure;  // why the filter could not judge the group, which is then kept; "": it could

  static void fields(auto& wire, auto& m) { wire(m.is_kept, m.reason, m.failure); }
};

// Keeps a group whose rewards have a standard deviation (n - 1) above 1e-6, as slime's check_reward_nonzero_std does.
// The reason to drop one is "zero_std_" and its first reward.
GroupVerdict judge_by_std(std::span<const double> rewards);

class GroupFilter {
 public:
  // Starts the process of a Python filter. Throws UserError if it cannot be used. `context` and `reward` are the same
  // as for the run's rewards.
  GroupFilter(const config::DynamicSamplingOptions& options, const config::RewardOptions& reward,
              const session::RewardContext& context);

  // Submits the samples of a group that have a reward, together with it (GradeRequest::graded). There is at least one.
  void submit(std::vector<reward::GradeRequest> samples);
  // Takes the verdicts that are there and were not taken before, by group id.
  std::map<uint64_t, GroupVerdict> take();
  // Returns the descriptor that is readable while a Python filter has verdicts that were not taken. The built-in filter
  // has them at once.
  std::optional<int> descriptor() const;
  // Forgets the groups that were submitted and not taken.
  void discard();

 private:
  std::optional<reward::Graders> function_;
  std::map<uint64_t, GroupVerdict> verdicts_;  // verdicts of the built-in filter
  std::map<uint64_t, uint64_t> group_of_;      // first sample id -> group id, for calls under way
};

// Loads a Python filter once, so that one that cannot be used is refused before weights are read. Throws UserError.
void try_out_filter(const config::DynamicSamplingOptions& options, const config::RewardOptions& reward,
                    const session::RewardContext& context);

}  // namespace tandem::groups
