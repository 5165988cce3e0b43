// The request for one rollout: prompts, how they are sampled, and whether they are graded.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/custom_generate_options.h"
#include "groups/group_filter.h"
#include "groups/in_flight.h"
#include "groups/schedule.h"
#include "model/config.h"
#include "reward/generators.h"
#include "reward/graders.h"
#include "rl/sample.h"
#include "sampling/failure_reward.h"
#include "sampling/schedule_log.h"
#include "session/prompt_set.h"

namespace tandem::sampling {

// A rollout that goes on sampling until enough groups pass a filter (docs/SAMPLING.md).
struct DynamicSampling {
  groups::GroupFilter* filter = nullptr;  // null if other processes judge
  std::string filter_name;                // as the user gave it
  // Returns the line of the next group. Every rank of a run draws every group.
  std::function<const session::PromptLine*()> next_prompt;  // unset with `in_flight`, which draws them
  int64_t num_groups = 0;                                   // number of groups to keep
  int64_t groups_at_once = 0;                               // groups kept or under way, at least num_groups
  groups::SearchLimits limits = {};
  bool stops_when_too_few = false;  // if a limit is reached, the run ends; else it trains on the groups that there are
};

// Samples that the user's function makes in several turns (sampling/turn_sampler.h).
struct CustomGeneration {
  reward::Generators* processes = nullptr;  // null if other processes sample
  std::string function;                     // FILE.py:function
  std::string metadata_key;
  int64_t context_tokens = 0;  // the model's
  int64_t vocab = 0;           // the model's: a token id is below it
  bool is_evaluation = false;
};

// Returns how the user's function makes samples for this model, or nullopt if the flags name no function. `processes`
// is borrowed, and null if other processes sample.
std::optional<CustomGeneration> custom_generation(const config::CustomGenerateOptions& options,
                                                  const std::string& metadata_key, const model::ModelConfig& model,
                                                  reward::Generators* processes, bool is_evaluation);

// A rollout of a run whose completions go on over several rollouts (docs/ASYNC.md).
struct InFlightRequest {
  struct Drawn {
    size_t group = 0;  // number in the whole run
    const session::PromptLine* line = nullptr;
  };
  groups::InFlight* groups = nullptr;  // null on ranks other than 0
  int64_t num_groups = 0;              // groups of the rollout
  int64_t groups_at_once = 0;          // groups in flight
  int64_t phase_tokens = 0;  // most tokens that a completion gets in one phase; 0: samplers work while the run trains
  const ScheduleLog* log = nullptr;  // what to sample and to take, if it is known
  bool pauses_completions = true;    // when the weights are new; else samplers bring to an end what has begun
  uint64_t weight_version = 0;
  std::function<Drawn()> next_group;   // rank 0: begins a group
  std::function<int64_t()> num_begun;  // groups of the whole run that have begun so far
  // Another rank: returns the prompt's line of a group that has begun.
  std::function<const session::PromptLine*(size_t group)> line_of;
};

struct RolloutRequest {
  std::vector<const session::PromptLine*> prompts;  // prompts of all groups; empty with `dynamic` or `in_flight`
  // It says for each of `prompts` whether its completion is the answer that its line gives, which nobody samples or
  // grades; the group is done when it is drawn. Empty: all are sampled. It needs n_samples_per_prompt 1.
  std::vector<bool> takes_answer = {};
  std::optional<DynamicSampling> dynamic = {};
  std::optional<InFlightRequest> in_flight = {};
  int64_t n_samples_per_prompt = 1;
  rl::SamplingParams sampling;
  // Sample ids are [first_sample_id, first_sample_id + prompts x n_samples_per_prompt), those of a prompt side by side.
  // They name the random streams.
  uint64_t first_sample_id = 0;
  bool skip_special_tokens = false;
  bool is_graded = true;                            // samples get a reward, here or in the processes that sample
  std::optional<reward::TrainingState> state = {};  // for rewards; unset outside of a run
  config::FailureReward failure_reward;
  std::optional<CustomGeneration> generation = {};  // unset: the engine alone makes samples
  int64_t eval_set = -1;                            // index of the data set of an evaluation; -1: not of an evaluation
  std::string title;                                // title of the live line: "rollout 3/200"
};

}  // namespace tandem::sampling
