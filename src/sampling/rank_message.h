// What the ranks of a run tell each other of the groups that each has sampled.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "rollout/engine.h"
#include "sampling/group_work.h"

namespace tandem::sampling {

struct RankMessage {
  bool is_stopped = false;               // the rank was asked to stop: nothing else is of use
  std::map<size_t, GradedGroup> groups;  // by index in the rollout
  // Since the rollout began.
  rollout::EngineStats stats;
  GroupWork::Losses losses;
  double seconds = 0.0;  // that the rank took for these groups
};

// The prompt of a group, of which a message has a checksum alone. EnvironmentError for an index that is none.
using PromptOf = std::function<rl::SharedPrompt(size_t index)>;
std::string to_bytes(const RankMessage& message, const PromptOf& prompt_of);
// EnvironmentError for bytes that are no message of this build, whatever they are, and for one about other prompts.
RankMessage rank_message(std::string_view bytes, const PromptOf& prompt_of);

// Sums; of what is largest at one time, the largest.
void add(const rollout::EngineStats& of_rank, rollout::EngineStats& sum);
void add(const GroupWork::Losses& of_rank, GroupWork::Losses& sum);

}  // namespace tandem::sampling
