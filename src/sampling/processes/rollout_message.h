// Messages by which rank 0 tells the other ranks the rollout that it has gathered. No torch.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sampling/rollout.h"

namespace tandem::sampling {

// Returns the prompt of a group by its number in the order in which groups were drawn. The message has a checksum of
// the prompt alone. It throws EnvironmentError for a number that no group has.
using PromptOf = std::function<rl::SharedPrompt(size_t group)>;

// The number changes with whatever the message is made of.
inline constexpr uint32_t kRolloutMessageFormat = 0x524D0005;
// Returns the message. nullopt stands for a rollout that a stop ended. `groups` are those of the samples, in order.
std::string to_bytes(const std::optional<Rollout>& rollout, const std::vector<size_t>& groups);
// Throws EnvironmentError for bytes that are no message of this build, and for a rollout of other prompts.
std::optional<Rollout> rollout_of(std::string_view bytes, const PromptOf& prompt_of);

}  // namespace tandem::sampling
