// The data ranks that take an optimizer step together, each with a device and all of the weights.
#pragma once

#include "device/communicator.h"
#include "trainer/shard.h"

namespace tandem::trainer {

// Borrowed. Both connect the same ranks in the same order: one moves tensors of their devices, the other those of their
// hosts.
struct Ranks {
  device::Communicator& device;
  device::Communicator& host;

  int rank() const { return device.rank(); }
  int size() const { return device.size(); }
  bool is_alone() const { return size() == 1; }
  Shard shard() const { return {.rank = rank(), .size = size()}; }
};

// Of a run that is one process.
const Ranks& no_other_ranks();

}  // namespace tandem::trainer
