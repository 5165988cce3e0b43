// Where LibTorch's allocations on a device come from while a run has a plan of its own for that device's memory.
// No torch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::device {

// Asked by LibTorch's allocator, from any thread, threads of a backward pass among them.
class AllocatorHook {
 public:
  virtual ~AllocatorHook() = default;
  // 64-byte aligned at least; `bytes` > 0. nullptr: LibTorch's own allocator serves this one. Throws EnvironmentError
  // when this one's memory is full.
  virtual std::byte* allocate(int64_t bytes) = 0;
  // False: the address is not from here.
  virtual bool free(std::byte* address) = 0;
};

}  // namespace tandem::device
