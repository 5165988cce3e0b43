// What it takes to keep the optimizer's masters and moments in pinned host memory (--offload-optimizer). No torch.
#pragma once

#include <cstdint>
#include <functional>

#include "device/host_memory.h"

namespace tandem::trainer {

// Elements of one tensor that cross at once: 16 MiB of float32, at which a copy has reached its full speed.
constexpr int64_t kOffloadPieceElements = int64_t{4} << 20;

// Sets of device buffers, each of a piece of every tensor that streams: one comes in, one is computed, one goes out.
constexpr int64_t kOffloadBufferSets = 3;

struct OptimizerOffload {
  // Borrowed. From make_trainer() on it is the trainer's alone: a thread of the trainer's calls it until the first
  // step(), state() or restore() has returned, and no two threads may.
  device::HostMemory& host_memory;
  // Waits for what is queued on the device's compute stream. Empty: operations are done when they return (the CPU).
  std::function<void()> synchronize = {};
  int64_t piece_elements = kOffloadPieceElements;  // at most, > 0
};

}  // namespace tandem::trainer
