// The ranks that take an optimizer step together.
#pragma once

#include <cstdint>

#include "device/communicator.h"
#include "trainer/shard.h"

namespace tandem::trainer {

// All are borrowed. `device` and `host` connect the data ranks, in the same order: those that hold the same part of the
// model, which is all of it where `parts` is one rank. One moves tensors of their devices, the other those of their
// hosts.
struct Ranks {
  device::Communicator& device;
  device::Communicator& host;
  // Connects the hosts of the ranks that hold the other parts, whose data rank is this one's.
  device::Communicator& parts;
  // Neighbouring ranks that exchange among each other what goes to or comes from other such groups, where the number of
  // ranks is a multiple (shard.h, works_in_two_levels()); 1: each rank exchanges with each other one.
  int64_t group_size = 1;

  int rank() const { return device.rank(); }
  int size() const { return device.size(); }
  bool is_alone() const { return size() == 1; }
  Shard shard() const { return {.rank = rank(), .size = size()}; }
};

// Returns the ranks of a run that is one process.
const Ranks& no_other_ranks();

}  // namespace tandem::trainer
