// Host memory that a device reads and writes at full speed (pinned), and copies between it and the device, as a
// contract. Copies are queued: each direction keeps its order, and the two directions run at once. No torch.
//
// allocate() returns nullptr where the host has too little memory; misuse is a BugError; anything else that goes wrong
// is an EnvironmentError. Calls come from one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::device {

class HostMemory {
 public:
  virtual ~HostMemory() = default;

  // This is slow, since the system pins page by page (about half a second per GiB). Allocate once and reuse.
  virtual std::byte* allocate(int64_t bytes) = 0;
  // Frees one whole allocation.
  virtual void free(std::byte* host, int64_t bytes) = 0;

  // `host` lies within one allocation. The copies are queued and return before the device is done. The caller has
  // waited for work of other streams on the same bytes, since copies start at once.
  virtual void copy_to_host(std::byte* host, const std::byte* device, int64_t bytes) = 0;
  virtual void copy_to_device(std::byte* device, const std::byte* host, int64_t bytes) = 0;
  // Waits for all copies.
  virtual void synchronize() = 0;
};

}  // namespace tandem::device
