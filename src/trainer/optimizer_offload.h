// Names the resources that keep the optimizer's masters and moments in pinned host memory (--offload-optimizer). No
// torch.
#pragma once

#include <cstdint>
#include <functional>

#include "device/host_memory.h"

namespace tandem::trainer {

// So many elements of one tensor cross at once: 16 MiB of float32, at which a copy has reached its full speed.
constexpr int64_t kOffloadPieceElements = int64_t{4} << 20;

// There are so many sets of device buffers, each for a piece of every tensor that streams: one is filled, one is
// computed on, one is drained.
constexpr int64_t kOffloadBufferSets = 3;

struct OptimizerOffload {
  // Borrowed. From make_trainer() on it belongs to the trainer alone: a thread of the trainer's calls it until the
  // first step(), state() or restore() has returned, and no two threads may.
  device::HostMemory& host_memory;
  // Waits for the work that is queued on the device's compute stream. Empty: operations are done when they return (the
  // CPU).
  std::function<void()> synchronize = {};
  int64_t piece_elements = kOffloadPieceElements;  // most elements of a piece, > 0
};

}  // namespace tandem::trainer
