// The calls that a replica's first rank passes on to the others, as bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rollout/engine.h"

namespace tandem::rollout {

struct AbortCall {
  uint64_t group_id = 0;
};
struct ReleaseCall {
  uint64_t sample_id = 0;
};
struct PauseCall {
  PauseMode mode = PauseMode::kKeepKv;
};
// kAsk asks whether a rank says so (LeadingEngine::any_says()). After kEnd no further call comes.
enum class PlainCall : uint8_t { kAbortAll, kResume, kCompactKv, kStep, kAsk, kEnd };

using ReplicaCall = std::variant<GroupRequest, AbortCall, ReleaseCall, PauseCall, PlainCall>;

std::string to_bytes(const std::vector<ReplicaCall>& calls);
// Throws EnvironmentError for bytes that to_bytes() does not write.
std::vector<ReplicaCall> replica_calls(std::string_view bytes);

}  // namespace tandem::rollout
