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

std::vector<std::byte> EngineRanks::pass_bytes(int to_rank, std::span<const std::byte> bytes, int64_t num_bytes) {
  device::TensorLists to(static_cast<size_t>(size())), from(to.size());
  std::vector<std::byte> received;
  if (is_first()) {
    // LibTorch has no tensor of constant bytes; an exchange only reads what it sends.
    to[static_cast<size_t>(to_rank)] = {at::from_blob(const_cast<std::byte*>(bytes.data()), {num_bytes}, at::kByte)};
  } else if (rank() == to_rank) {
    received.resize(static_cast<size_t>(num_bytes));
    from[kFirst] = {at::from_blob(received.data(), {num_bytes}, at::kByte)};
  }
  hosts_.start_exchange(std::move(to), std::move(from))->wait();
  return received;
}

bool EngineRanks::any_of(bool mine) {
  const memory::BypassArena outside;
  return device::any_of(hosts_, mine);
}

}  // namespace tandem::rollout_worker
