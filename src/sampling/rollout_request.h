// What is asked of a rollout phase.
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
  GroupFilter* filter = nullptr;  // null where others judge
  std::string filter_name;        // as the user gave it
  // Of the group that is drawn next. Every rank of a run draws every group.
  std::function<const session::PromptLine*()> next_prompt;
  int64_t num_groups = 0;      // to be kept
  int64_t groups_at_once = 0;  // kept or under way, at least num_groups
  SearchLimits limits = {};
  bool stops_when_too_few = false;  // a limit was reached: the run ends; else it trains on what there is, if anything
};

// Samples that the user's function makes in several turns (sampling/turn_sampler.h).
struct CustomGeneration {
  reward::Generators* processes = nullptr;  // null where others sample
  std::string function;                     // FILE.py:function
  std::string metadata_key;
  int64_t context_tokens = 0;  // the model's
  int64_t vocab = 0;           // the model's: a token id is below it
  bool is_evaluation = false;
};

struct RolloutRequest {
  std::vector<const session::PromptLine*> prompts;  // of all groups; none with `dynamic`
  std::optional<DynamicSampling> dynamic = {};
  int64_t n_samples_per_prompt = 1;
  rl::SamplingParams sampling;
  // Sample ids are [first_sample_id, + prompts x n), those of a prompt side by side: they name the random streams.
  uint64_t first_sample_id = 0;
  bool skip_special_tokens = false;
  bool is_graded = true;  // here or where groups are sampled; else samples have no reward
  config::FailureReward failure_reward;
  std::optional<CustomGeneration> generation = {};  // unset: the engine alone makes samples
  int64_t eval_set = -1;                            // of an evaluation: its place among the data sets
  std::string title;                                // of the live line: "rollout 3/200"
};

}  // namespace tandem::sampling
