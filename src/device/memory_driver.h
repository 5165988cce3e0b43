// The memory of one device, as far as the backend gives access to it: virtual memory, pinned host memory, and
// LibTorch's allocations there. No torch.
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
  // Makes a new one. Its calls come from one thread at a time, so each user makes its own.
  std::function<std::unique_ptr<HostMemory>()> make_host = nullptr;
  // From now on LibTorch asks this source for memory of the device; with null it uses its own allocator alone. There is
  // one source at a time. Its memory may be freed later, as long as it is set.
  void (*set_tensor_source)(AllocatorHook* source) = nullptr;
  // Returns the bytes of the device that are in use, given that the Vmm has given out `vmm_bytes` of it: this
  // process's, and those that others have taken since its operations were created. On the CPU these are this process's
  // alone.
  int64_t (*used_bytes)(int64_t vmm_bytes) = nullptr;
  // Waits for all work that is queued on the device.
  void (*synchronize)() = nullptr;
  // Makes LibTorch's own allocator return its unused memory to the device. Null where it keeps none.
  void (*release_unused)() = nullptr;
  // A note for people if something was set up other than the environment asks; "" for nothing.
  std::string note = {};
};

}  // namespace tandem::device
