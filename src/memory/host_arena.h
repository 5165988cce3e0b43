// Provides host memory for data that leaves the device for a while. It is pinned once, because pinning costs half a
// second per GiB, and then allocated piece by piece. No torch.
#pragma once

#include <string_view>

#include "device/host_memory.h"
#include "memory/tag.h"
#include "memory/view_allocator.h"

namespace tandem::memory {

// Borrows the HostMemory, which also makes the copies. It is used from one thread at a time.
class HostArena {
 public:
  // With 0 bytes nothing can be kept. Throws EnvironmentError when the host has too little memory; the message ends
  // with `remedy`.
  HostArena(device::HostMemory& memory, int64_t bytes, std::string_view remedy = "keep less on the host");
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  std::byte* allocate(int64_t bytes, Tag tag, std::string_view name);  // nullptr if it is full
  void free(std::byte* address);

  device::HostMemory& memory() const { return memory_; }
  int64_t bytes() const { return bytes_; }
  int64_t free_bytes() const { return allocator_.free_bytes(); }

 private:
  device::HostMemory& memory_;
  const int64_t bytes_;
  std::byte* data_ = nullptr;
  ViewAllocator allocator_{GrowsFrom::kLowEnd};
};

}  // namespace tandem::memory
