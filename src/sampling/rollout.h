// A rollout: graded samples of some prompts, and what is known of how they were made.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/reward_options.h"
#include "reward/graders.h"
#include "rl/sample.h"
#include "rollout/request.h"

namespace tandem::sampling {

// Failures of the function of --custom-generate-function-path, among those of grades (Grade::reason_class).
inline constexpr const char* kGenerateFailure = "generate";

// What dynamic sampling did for one rollout. The first numbers are about the groups up to the last one taken, which are
// the same whenever the run is repeated; the others depend on what was under way when it was full.
struct FilteredGroups {
  int64_t num_groups = 0;
  int64_t num_kept = 0, num_wanted = 0;    // fewer are kept than wanted where a limit ended the search
  int64_t num_judged = 0;                  // by the filter: groups with a reward
  std::map<std::string, int64_t> dropped;  // by reason
  int64_t num_failures = 0;                // of the filter: groups that it could not judge
  std::string first_failure;
  double mean_reward = 0.0;  // of all samples with a reward, dropped groups too
  bool has_mean_reward = false;

  int64_t num_excess = 0;   // groups drawn behind the last one taken
  int64_t num_aborted = 0;  // of those: had not ended

  int64_t num_dropped() const;
  int64_t num_missing() const { return num_wanted - num_kept; }
  bool always_failed() const { return num_judged > 0 && num_failures == num_judged; }

  static void fields(auto& wire, auto& m) {
    wire(m.num_groups, m.num_kept, m.num_wanted, m.num_judged, m.dropped, m.num_failures, m.first_failure);
    wire(m.mean_reward, m.has_mean_reward, m.num_excess, m.num_aborted);
  }
};

struct Rollout {
  std::vector<rl::Sample> samples;    // in sample order
  std::vector<reward::Grade> grades;  // one a sample; empty without graders
  rollout::EngineStats stats;         // of all ranks together
  bool is_sampled = false;            // by the engine, with the weights that the trainer has: not read from a file
  double seconds = 0.0;               // with rewards; of the rank that took longest
  int64_t num_ranks = 1;              // that sampled it
  int64_t num_workers = 0;            // engines of processes that only sample, if these sampled it
  int64_t num_lost_workers = 0;       // of those: died meanwhile, or were silent too long
  double idle_share = 0.0;            // of these ranks' time: waiting until the last one had finished its groups
  int64_t num_failed = 0;             // samples whose grading failed
  int64_t num_dropped = 0;            // of those: without a reward
  int64_t num_repeated = 0;           // samples that were graded again after their grader was lost
  int64_t num_restarts = 0;           // graders that were replaced meanwhile
  int64_t num_generate_restarts = 0;  // the same of processes of the generate function,
  int64_t num_generate_repeated = 0;  // and of samples that began again
  int64_t num_unnamed = 0;            // numbers and columns of rewards that limit_reward_names() left out
  std::string first_failure;          // "sample 12: ValueError: ..."
  std::optional<FilteredGroups> filtered = {};  // of dynamic sampling

  static void fields(auto& wire, auto& m) {
    wire(m.samples, m.grades, m.stats, m.is_sampled, m.seconds, m.num_ranks, m.num_workers, m.num_lost_workers);
    wire(m.idle_share, m.num_failed, m.num_dropped, m.num_repeated, m.num_restarts, m.num_generate_restarts);
    wire(m.num_generate_repeated, m.num_unnamed, m.first_failure, m.filtered);
  }

  // Sets num_failed, num_dropped and first_failure from samples and grades.
  void count_failures();
  bool all_failed() const { return num_failed > 0 && num_failed == static_cast<int64_t>(samples.size()); }

  std::vector<const rl::Sample*> views() const;
};

// Rewards, and what reward code wrote, into the samples of a rollout that has its grades; counts failures.
void put_grades(const config::FailureReward& failure_reward, Rollout& rollout);

// Reward code names what it returns besides the reward, logs or adds as a column, and each name is a series of its own
// in metrics and samples. Of a rollout the first kMaxRewardNames stay, in sample order; returns how many values and
// columns under other names were taken out.
constexpr size_t kMaxRewardNames = 256;
int64_t limit_reward_names(std::vector<reward::Grade>& grades);

}  // namespace tandem::sampling
