// The request for one rollout: prompts, how they are sampled, and whether they are graded.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reward/generators.h"
#include "rl/sample.h"
#include "sampling/failure_reward.h"
#include "sampling/group_filter.h"
#include "sampling/schedule.h"
#include "session/prompt_set.h"

namespace tandem::sampling {

// A rollout that goes on sampling until enough groups pass a filter (docs/SAMPLING.md).
struct DynamicSampling {
  GroupFilter* filter = nullptr;  // null if other processes judge
  std::string filter_name;        // as the user gave it
  // Returns the line of the next group. Every rank of a run draws every group.
  std::function<const session::PromptLine*()> next_prompt;
  int64_t num_groups = 0;      // number of groups to keep
  int64_t groups_at_once = 0;  // groups kept or under way, at least num_groups
  SearchLimits limits = {};
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

struct RolloutRequest {
  std::vector<const session::PromptLine*> prompts;  // prompts of all groups; empty with `dynamic`
  std::optional<DynamicSampling> dynamic = {};
  int64_t n_samples_per_prompt = 1;
  rl::SamplingParams sampling;
  // Sample ids are [first_sample_id, first_sample_id + prompts x n_samples_per_prompt), those of a prompt side by side.
  // They name the random streams.
  uint64_t first_sample_id = 0;
  bool skip_special_tokens = false;
  bool is_graded = true;  // samples get a reward, here or in the processes that sample
  config::FailureReward failure_reward;
  std::optional<CustomGeneration> generation = {};  // unset: the engine alone makes samples
  int64_t eval_set = -1;                            // index of the data set of an evaluation; -1: not of an evaluation
  std::string title;                                // title of the live line: "rollout 3/200"
};

}  // namespace tandem::sampling
