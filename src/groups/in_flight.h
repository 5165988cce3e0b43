// The groups of a run that have begun and are not trained on yet, where completions go on over several rollouts. Rank 0
// has them; they outlive a rollout, and a checkpoint holds them. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "groups/group_pool.h"
#include "groups/in_flight_schedule.h"
#include "rl/sample.h"

namespace tandem::groups {

// A group has the number of its prompt in the whole run.
struct InFlight {
  // `rollout` counts the rollouts that are finished. Groups are graded.
  InFlight(const InFlightSchedule::Settings& settings, int64_t n_samples_per_prompt, int64_t rollout)
      : pool(n_samples_per_prompt, /*is_graded=*/true), schedule(settings, rollout) {}

  // Says that the rollout samples with weights of this version.
  void weights_are(uint64_t version);
  // Returns how many times the weights have changed since a token of this version was sampled.
  int64_t age(uint64_t version) const;
  // Forgets the versions that no sample in flight has tokens of, but for the present one.
  void forget_old_versions();

  GroupPool pool;
  InFlightSchedule schedule;
  std::vector<uint64_t> versions = {};  // of the weights that sampled since the oldest group began, ascending
  // The groups that the filter has dropped since a rollout was taken, by number: they count for the next one. Their
  // verdicts and sums alone are kept.
  std::map<size_t, GroupGrades> dropped = {};
};

// Returns the record of a prompt, as its index among all prompts of the run, and back.
using IndexOfLine = std::function<int64_t(const session::PromptLine&)>;
using LineOfIndex = std::function<const session::PromptLine&(int64_t)>;

// Returns the bytes that a checkpoint holds. They are valid between two rollouts.
std::string to_bytes(const InFlight& in_flight, const IndexOfLine& index_of);

// The bytes must agree with these numbers of the run.
struct InFlightLimits {
  std::string file;         // for errors
  int64_t num_prompts = 0;  // records of the run
  int64_t num_begun = 0;    // prompts drawn so far: numbers of groups are below it
  int64_t rollout = 0;      // finished rollouts
  int64_t n_samples_per_prompt = 1;
  int64_t vocab = 0;           // a token is below it
  int64_t max_new_tokens = 0;  // of a completion
  bool has_behavior_logprobs = false;
};
// Puts the groups of a checkpoint back, into an object that has none. Throws UserError for bytes that to_bytes() did
// not write, or that do not agree with the run: it may take too few groups a rollout to train on all of them in time.
void put_back(std::string_view bytes, const InFlightLimits& limits, const LineOfIndex& line_of, InFlight& in_flight);
// Returns the records of the prompts in those bytes, by number of their groups: what another rank needs to know.
std::map<size_t, int64_t> records_in(std::string_view bytes, const InFlightLimits& limits);
// Returns how many groups are in those bytes, which nothing of the run is compared with. `file` is for errors.
int64_t num_groups_in(std::string_view bytes, const std::string& file);

}  // namespace tandem::groups
