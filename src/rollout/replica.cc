#include "rollout/replica.h"

#include <utility>

#include "base/check.h"
#include "device/waits_for_samples.h"
#include "memory/arena_allocator.h"

namespace tandem::rollout {

namespace {

constexpr int kFirst = 0;  // first rank of a replica

void do_call(const ReplicaCall& call, Engine& engine) {
  if (const auto* const request = std::get_if<GroupRequest>(&call)) {
    engine.add(*request);
  } else if (const auto* const abort = std::get_if<AbortCall>(&call)) {
    engine.abort(abort->group_id);
  } else if (const auto* const release = std::get_if<ReleaseCall>(&call)) {
    engine.release(release->sample_id);
  } else {
    switch (std::get<PlainCall>(call).kind) {
      case PlainCallKind::kAbortAll: engine.abort_all(); break;
      case PlainCallKind::kStep: engine.step(); break;
      case PlainCallKind::kAsk:
      case PlainCallKind::kEnd: break;  // these are not the engine's
    }
  }
}

bool is(const ReplicaCall& call, PlainCallKind which) {
  const auto* const plain = std::get_if<PlainCall>(&call);
  return plain != nullptr && plain->kind == which;
}

}  // namespace

void LeadingEngine::send() {
  const memory::BypassArena message;
  device::broadcast_text(hosts_, kFirst, to_bytes(std::exchange(unsent_, {})));
}

void LeadingEngine::end() {
  TANDEM_CHECK_EQ(engine_.num_unfinished_groups(), 0, "groups in flight");
  unsent_.emplace_back(PlainCall{PlainCallKind::kEnd});
  send();
}

bool LeadingEngine::any_says(bool mine) {
  unsent_.emplace_back(PlainCall{PlainCallKind::kAsk});
  send();
  const memory::BypassArena message;
  return device::any_of(hosts_, mine);
}

void LeadingEngine::add(GroupRequest request) {
  engine_.add(request);  // it may refuse the request
  ++num_in_;
  unsent_.emplace_back(std::move(request));
}

void LeadingEngine::abort(uint64_t group_id) {
  engine_.abort(group_id);
  unsent_.emplace_back(AbortCall{.group_id = group_id});
}

void LeadingEngine::abort_all() {
  engine_.abort_all();
  unsent_.emplace_back(PlainCall{PlainCallKind::kAbortAll});
}

void LeadingEngine::release(uint64_t sample_id) {
  engine_.release(sample_id);
  unsent_.emplace_back(ReleaseCall{.sample_id = sample_id});
}

void LeadingEngine::update_weights(const weights::WeightsView& /*view*/) {
  throw BugError("each rank's engine is given its own weights");
}

std::optional<rl::Group> LeadingEngine::next_finished() {
  while (num_in_ == engine_.num_unfinished_groups()) {
    if (!step()) return std::nullopt;
  }
  --num_in_;
  return engine_.next_finished();
}

// The other ranks are told first, because the devices meet in the step.
bool LeadingEngine::step() {
  if (engine_.num_unfinished_groups() == 0) return false;
  unsent_.emplace_back(PlainCall{PlainCallKind::kStep});
  send();
  return engine_.step();
}

void follow(Engine& engine, device::Communicator& hosts, const std::function<bool()>& says) {
  int64_t num_in = 0;
  while (true) {
    std::string bytes;
    {
      const memory::BypassArena message;
      const device::WaitsForSamples as_long_as_it_takes(hosts);  // the first rank may wait for rewards
      bytes = device::broadcast_text(hosts, kFirst, "");
    }
    for (const ReplicaCall& call : replica_calls(bytes)) {
      if (is(call, PlainCallKind::kEnd)) return;
      if (is(call, PlainCallKind::kAsk)) {
        const memory::BypassArena message;
        device::any_of(hosts, says && says());
        continue;
      }
      do_call(call, engine);
      if (std::holds_alternative<GroupRequest>(call)) ++num_in;
      for (; num_in > engine.num_unfinished_groups(); --num_in) engine.next_finished();
    }
  }
}

}  // namespace tandem::rollout
