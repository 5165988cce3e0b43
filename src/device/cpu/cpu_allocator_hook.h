// Redirects LibTorch's CPU allocations to an AllocatorHook.
#pragma once

#include "device/allocator_hook.h"

namespace tandem::device {

// Implements MemoryDriver::set_tensor_source. The first call replaces LibTorch's CPU allocator for the life of the
// process; without a source the replacement does what LibTorch's own did.
void set_cpu_tensor_source(AllocatorHook* source);

}  // namespace tandem::device
