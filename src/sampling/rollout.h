// A rollout: graded samples of some prompts, and numbers that say how they were made.
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

// Failures of the function of --custom-generate-function-path have this class (Grade::reason_class) among those of
// grades.
inline constexpr const char* kGenerateFailure = "generate";

// Counts what dynamic sampling did for one rollout. The first numbers are about the groups up to the last one taken,
// and are the same whenever the run is repeated; the others depend on what was under way when the rollout was full.
struct FilteredGroups {
  int64_t num_groups = 0;
  int64_t num_kept = 0, num_wanted = 0;    // fewer are kept than wanted if a limit ended the search
  int64_t num_judged = 0;                  // groups with a reward, which the filter judged
  std::map<std::string, int64_t> dropped;  // groups by reason
  int64_t num_failures = 0;                // groups that the filter could not judge
  std::string first_failure;
  double mean_reward = 0.0;  // mean over all samples with a reward, dropped groups too
  bool has_mean_reward = false;

  int64_t num_excess = 0;   // groups drawn after the last one taken
  int64_t num_aborted = 0;  // excess groups that had not ended

  int64_t num_dropped() const;
  int64_t num_missing() const { return num_wanted - num_kept; }
  bool always_failed() const { return num_judged > 0 && num_failures == num_judged; }

  static void fields(auto& wire, auto& m) {
    wire(m.num_groups, m.num_kept, m.num_wanted, m.num_judged, m.dropped, m.num_failures, m.first_failure);
    wire(m.mean_reward, m.has_mean_reward, m.num_excess, m.num_aborted);
  }
};

// Says how old a rollout is whose completions go on over several rollouts, and what goes on after it (docs/ASYNC.md).
// In phases the numbers are the same whenever the run is repeated.
struct InFlightNumbers {
  int64_t num_phases = 0;                // 0 if samplers worked while the run trained
  int64_t num_begun = 0;                 // groups of the whole run that have begun so far
  std::vector<uint64_t> in_flight;       // numbers of the groups that go on after this rollout
  std::vector<uint64_t> dropped;         // numbers of the groups that a filter dropped since the rollout before
  int64_t num_waiting = 0;               // those of them whose samples have all ended
  std::map<int64_t, int64_t> ages;       // sampled tokens of the rollout, by age: how often the weights changed since
  double mean_staleness = 0.0;           // mean over the groups of the age of their oldest token
  int64_t max_staleness = 0;             // and the largest
  int64_t num_partial = 0;               // samples whose tokens are of several versions
  int64_t max_partial_span = 0;          // most versions that one sample's tokens are of
  double length_taken_over_begun = 1.0;  // mean length over that of all in flight, where unfinished ones count so far

  static void fields(auto& wire, auto& m) {
    wire(m.num_phases, m.num_begun, m.in_flight, m.dropped, m.num_waiting, m.ages, m.mean_staleness, m.max_staleness);
    wire(m.num_partial, m.max_partial_span, m.length_taken_over_begun);
  }
};

struct Rollout {
  std::vector<rl::Sample> samples;              // in sample order
  std::vector<reward::Grade> grades;            // one for each sample; empty without graders
  rollout::EngineStats stats;                   // sum over all ranks
  bool is_sampled = false;                      // sampled with the trainer's weights, not read from a file
  double seconds = 0.0;                         // time of the slowest rank, rewards included
  int64_t num_ranks = 1;                        // ranks that sampled it
  int64_t num_workers = 0;                      // engines of rollout workers, if these sampled it
  int64_t num_lost_workers = 0;                 // workers that died meanwhile, or were silent too long
  double idle_share = 0.0;                      // share of the samplers' time spent waiting for the last one to finish
  std::optional<double> pause_seconds = {};     // how long samplers stood still for new weights, if the run trained
  int64_t num_failed = 0;                       // samples whose grading failed
  int64_t num_dropped = 0;                      // failed samples that have no reward
  int64_t num_repeated = 0;                     // samples that were graded again after their grader was lost
  int64_t num_restarts = 0;                     // graders that were replaced meanwhile
  int64_t num_generate_restarts = 0;            // processes of the generate function that were replaced
  int64_t num_generate_repeated = 0;            // samples that were begun again
  int64_t num_unnamed = 0;                      // numbers and columns of rewards that limit_reward_names() left out
  std::string first_failure;                    // "sample 12: ValueError: ..."
  std::string advantage_failure;                // why --custom-advantage-path gave no advantages; "": it did
  std::optional<FilteredGroups> filtered = {};  // set with dynamic sampling
  std::optional<InFlightNumbers> in_flight = {};  // set where completions go on over several rollouts

  // All but what becomes known after the rollout was sent.
  static void fields(auto& wire, auto& m) {
    wire(m.samples, m.grades, m.stats, m.is_sampled, m.seconds, m.num_ranks, m.num_workers, m.num_lost_workers);
    wire(m.idle_share, m.pause_seconds, m.num_failed, m.num_dropped, m.num_repeated, m.num_restarts,
         m.num_generate_restarts);
    wire(m.num_generate_repeated, m.num_unnamed, m.first_failure, m.filtered, m.in_flight);
  }

  // Sets num_failed, num_dropped and first_failure from samples and grades.
  void count_failures();
  bool all_failed() const { return num_failed > 0 && num_failed == static_cast<int64_t>(samples.size()); }

  std::vector<const rl::Sample*> views() const;
};

// Writes rewards, and what reward code left in samples, into a rollout that has its grades, and counts failures.
void put_grades(const config::FailureReward& failure_reward, Rollout& rollout);

// The score that a reward model gave a sample, or the reason why it gave none.
struct ModelScore {
  double value = 0.0;
  std::string reason_class = {}, reason = {};  // as those of reward::Grade; both are empty where there is a score
};

// Adds a reward model's scores, one for each sample, to a rollout that has the grades of all other rewards: as the part
// `name` of each grade, and with `weight` to its reward. A sample without a score, or whose sum is not finite, fails as
// one of a grader does. A sample that no grader was asked for has no such part, and stays as it is.
void put_model_rewards(const std::string& name, double weight, const std::vector<ModelScore>& scores,
                       const config::FailureReward& failure_reward, Rollout& rollout);

// Takes out values and columns under too many names, and returns how many. Reward code names what it returns besides
// the reward, logs or adds as a column, and each name is a series of its own in metrics and samples. The first
// kMaxRewardNames names of a rollout stay, in sample order.
constexpr size_t kMaxRewardNames = 256;
int64_t limit_reward_names(std::vector<reward::Grade>& grades);

}  // namespace tandem::sampling
