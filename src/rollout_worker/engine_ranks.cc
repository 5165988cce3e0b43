#include "rollout_worker/engine_ranks.h"

#include <ATen/ops/from_blob.h>

#include <utility>

#include "device/waits_for_samples.h"
#include "memory/arena_allocator.h"

namespace tandem::rollout_worker {

void EngineRanks::pass_on(const sampling::Message& message) {
  if (size() == 1) return;
  const memory::BypassArena outside;
  device::broadcast_text(hosts_, kFirst, to_bytes(message));
}

sampling::Message EngineRanks::next() {
  const memory::BypassArena outside;
  const device::WaitsForSamples as_long_as_it_takes(hosts_);
  return sampling::message_of(device::broadcast_text(hosts_, kFirst, ""));
}

void EngineRanks::pass_bytes(int to_rank, std::span<std::byte> bytes) {
  device::TensorLists to(static_cast<size_t>(size())), from(to.size());
  if (!bytes.empty()) {
    const at::Tensor tensor = at::from_blob(bytes.data(), {std::ssize(bytes)}, at::kByte);
    if (is_first()) {
      to[static_cast<size_t>(to_rank)] = {tensor};
    } else {
      from[kFirst] = {tensor};
    }
  }
  hosts_.start_exchange(std::move(to), std::move(from))->wait();
}

bool EngineRanks::any_of(bool mine) {
  const memory::BypassArena outside;
  return device::any_of(hosts_, mine);
}

}  // namespace tandem::rollout_worker
