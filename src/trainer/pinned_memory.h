// Pinned host memory that a background thread allocates and zeroes: the system pins about 2 GiB/s, and the first
// rollout should not wait for it. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>

#include "device/host_memory.h"

namespace tandem::trainer {

// Owns one allocation, zeros at first. Borrows the HostMemory, whose calls come from one thread at a time: nobody else
// may call it before data() has returned or thrown.
class PinnedMemory {
 public:
  PinnedMemory(device::HostMemory& memory, int64_t bytes);  // bytes > 0
  ~PinnedMemory();                                          // waits for the thread; copies must have ended
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Waits until the memory is there. Throws EnvironmentError, at every call, when the host has too little.
  std::byte* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  device::HostMemory& memory_;
  const int64_t bytes_;
  std::shared_future<std::byte*> data_;
};

}  // namespace tandem::trainer
