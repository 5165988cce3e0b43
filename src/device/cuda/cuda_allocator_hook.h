// LibTorch's allocations on NVIDIA GPUs, turned to a AllocatorHook.
#pragma once

#include "device/allocator_hook.h"

namespace tandem::device {

// Puts our allocator before LibTorch's caching one, for the life of the process: it asks the source first, and without
// one does what the caching allocator did, without expandable segments. To be called before LibTorch has initialised
// CUDA; more calls do nothing.
void install_cuda_tensor_source();
// Whether the environment had asked for expandable segments.
bool expandable_segments_were_on();

// As MemoryDriver::set_tensor_source says.
void set_cuda_tensor_source(AllocatorHook* source);

// Has cuBLAS make its workspaces now, those of the thread that runs backward passes too: they last as long as the
// process, so that a source must not be asked for them. Of the current device.
void make_cublas_workspaces();

// Gives back to the driver what the caching allocator holds and nobody uses.
void release_cuda_cache();

}  // namespace tandem::device
