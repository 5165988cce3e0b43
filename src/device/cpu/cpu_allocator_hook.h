// LibTorch's CPU allocations, turned to a AllocatorHook.
#pragma once

#include "device/allocator_hook.h"

namespace tandem::device {

// As MemoryDriver::set_tensor_source says. The first call replaces LibTorch's CPU allocator, for the life of the
// process; without a source it does what LibTorch's own did.
void set_cpu_tensor_source(AllocatorHook* source);

}  // namespace tandem::device
