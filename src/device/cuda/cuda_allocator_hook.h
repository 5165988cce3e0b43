// LibTorch's allocations on NVIDIA GPUs, turned to a AllocatorHook.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

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

// Memory of the caching allocator that one graph alone uses, for as long as it lives: its addresses are in the graph.
class GraphPool {
 public:
  explicit GraphPool(c10::DeviceIndex device);
  ~GraphPool();
  GraphPool(const GraphPool&) = delete;
  GraphPool& operator=(const GraphPool&) = delete;

  // While it lives, what the caching allocator gives for that stream is of the pool.
  class Scope {
   public:
    Scope(const GraphPool& pool, cudaStream_t stream);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const GraphPool& pool_;
  };

 private:
  c10::DeviceIndex device_;
  std::pair<unsigned long long, unsigned long long> id_;
  mutable bool is_used_ = false;
};

// Gives back to the driver what the caching allocator holds and nobody uses.
void release_cuda_cache();

}  // namespace tandem::device
