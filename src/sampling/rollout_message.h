// The rollout that rank 0 has gathered, as it tells the other ranks. No torch.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sampling/rollout.h"

namespace tandem::sampling {

// The prompt of a group, by the group's place in the order in which groups were drawn. The message has a checksum of it
// alone. EnvironmentError for a place that is none.
using PromptOf = std::function<rl::SharedPrompt(size_t group)>;

// The number changes with whatever the message is made of.
inline constexpr uint32_t kRolloutMessageFormat = 0x524D0002;
// nullopt: the rollout was ended by a stop. `groups`: those that the samples are of, in order.
std::string to_bytes(const std::optional<Rollout>& rollout, const std::vector<size_t>& groups);
// EnvironmentError for bytes that are no message of this build, and for a rollout of other prompts.
std::optional<Rollout> rollout_of(std::string_view bytes, const PromptOf& prompt_of);

}  // namespace tandem::sampling
