// The calls that a replica's first rank passes on to the others, as bytes. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rollout/request.h"

namespace tandem::rollout {

struct AbortCall {
  uint64_t group_id = 0;
  static void fields(auto& wire, auto& m) { wire(m.group_id); }
};
struct ReleaseCall {
  uint64_t sample_id = 0;
  static void fields(auto& wire, auto& m) { wire(m.sample_id); }
};
// Names a call without arguments. kAsk asks whether a rank says so (LeadingEngine::any_says()). After kEnd no further
// call comes.
enum class PlainCallKind : uint8_t { kAbortAll, kStep, kAsk, kEnd };
struct PlainCall {
  PlainCallKind kind = PlainCallKind::kStep;
  static void fields(auto& wire, auto& m) { wire.choice(m.kind, 4); }
};

using ReplicaCall = std::variant<GroupRequest, AbortCall, ReleaseCall, PlainCall>;

std::string to_bytes(const std::vector<ReplicaCall>& calls);
// Throws EnvironmentError for bytes that to_bytes() does not write.
std::vector<ReplicaCall> replica_calls(std::string_view bytes);

}  // namespace tandem::rollout
