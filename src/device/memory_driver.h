// The memory of one device, as far as the backend gives it away: virtual memory, pinned host memory, and LibTorch's
// allocations there. No torch.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "device/allocator_hook.h"
#include "device/host_memory.h"
#include "device/vmm.h"

namespace tandem::device {

struct MemoryDriver {
  std::unique_ptr<Vmm> vmm;
  // A new one: its calls come from one thread at a time, and so each user has one.
  std::function<std::unique_ptr<HostMemory>()> make_host = nullptr;
  // From now on LibTorch asks this source for memory of the device; null: nobody but its own allocator. One source at
  // a time; what it gave may be freed later, as long as it is set.
  void (*set_tensor_source)(AllocatorHook* source) = nullptr;
  // Bytes of the device that are in use, given that the Vmm has given `vmm_bytes` of it: this process's, and what
  // others have taken since its operations were made. On the CPU: this process's.
  int64_t (*used_bytes)(int64_t vmm_bytes) = nullptr;
  // Waits for all that is queued on the device.
  void (*synchronize)() = nullptr;
  // LibTorch's own allocator gives back to the device what nobody uses. Null: it keeps nothing.
  void (*release_unused)() = nullptr;
  // What was set up other than the environment says, for people; "" for nothing.
  std::string note = {};
};

}  // namespace tandem::device
