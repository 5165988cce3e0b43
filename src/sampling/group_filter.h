// Whether a group is trained on (--dynamic-sampling-filter-path): where its rewards differ, or what a Python function
// says, in a process of its own that is watched and confined as those of rewards are. No torch.
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

namespace tandem::sampling {

struct GroupVerdict {
  bool is_kept = true;
  std::string reason;   // of a dropped one: a part of a metric's name
  std::string failure;  // why the filter could not judge the group, which is kept then; "": it could

  static void fields(auto& wire, auto& m) { wire(m.is_kept, m.reason, m.failure); }
};

// Keeps a group whose rewards have a standard deviation (n - 1) above 1e-6, as slime's check_reward_nonzero_std; the
// reason to drop one is "zero_std_" and its first reward.
GroupVerdict judge_by_std(std::span<const double> rewards);

class GroupFilter {
 public:
  // Starts the process of a Python filter; UserError for one that cannot be used. `context` and `reward` as those of
  // the run's rewards.
  GroupFilter(const config::DynamicSamplingOptions& options, const config::RewardOptions& reward,
              const session::RewardContext& context);

  // The samples of a group that have a reward, with it (GradeRequest::graded); there is at least one.
  void submit(std::vector<reward::GradeRequest> samples);
  // Waits that long for the first verdict that was not taken yet, and takes all there are: group id -> verdict.
  std::map<uint64_t, GroupVerdict> take(double seconds);
  // Forgets what was submitted and is not taken.
  void discard();

 private:
  std::optional<reward::Graders> function_;
  std::map<uint64_t, GroupVerdict> verdicts_;  // of the built-in filter
  std::map<uint64_t, uint64_t> group_of_;      // first sample id -> group id, of calls under way
};

// Loads a Python filter once, so that one that cannot be used is refused before weights are read. UserError.
void try_out_filter(const config::DynamicSamplingOptions& options, const config::RewardOptions& reward,
                    const session::RewardContext& context);

}  // namespace tandem::sampling
