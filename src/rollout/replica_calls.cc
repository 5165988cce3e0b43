#include "rollout/replica_calls.h"

#include "base/wire_fields.h"

namespace tandem::rollout {

namespace {

constexpr uint32_t kFormat = 0x43470004;

struct Calls {
  std::vector<base::OneOf<ReplicaCall>> calls;
  static void fields(auto& wire, auto& m) { wire(m.calls); }
};

}  // namespace

std::string to_bytes(const std::vector<ReplicaCall>& calls) {
  Calls message;
  for (const ReplicaCall& call : calls) message.calls.push_back({call});
  return base::packed(message, kFormat);
}

std::vector<ReplicaCall> replica_calls(std::string_view bytes) {
  std::vector<ReplicaCall> calls;
  for (auto& call : base::unpacked<Calls>(bytes, kFormat).calls) calls.push_back(std::move(call.value));
  return calls;
}

}  // namespace tandem::rollout
