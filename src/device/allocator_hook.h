// Lets a run serve LibTorch's allocations on a device from memory of its own plan. No torch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::device {

// LibTorch's allocator calls it from any thread, threads of a backward pass among them.
class AllocatorHook {
 public:
  virtual ~AllocatorHook() = default;
  // Returns `bytes` > 0 bytes, aligned to at least 64, or nullptr: then LibTorch's own allocator serves this request.
  // Throws EnvironmentError when this hook's memory is full.
  virtual std::byte* allocate(int64_t bytes) = 0;
  // Returns false if the address did not come from here.
  virtual bool free(std::byte* address) = 0;
};

}  // namespace tandem::device
