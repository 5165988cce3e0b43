// Redirects LibTorch's allocations on NVIDIA GPUs to an AllocatorHook.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "device/allocator_hook.h"

namespace tandem::device {

// Puts our allocator before LibTorch's caching one, for the life of the process. It asks the source first, and without
// one does what the caching allocator did, without expandable segments. Call it before LibTorch has initialised CUDA;
// more calls do nothing.
void install_cuda_tensor_source();
// Returns whether the environment had asked for expandable segments.
bool expandable_segments_were_on();

// Implements MemoryDriver::set_tensor_source.
void set_cuda_tensor_source(AllocatorHook* source);

// Makes cuBLAS allocate its workspaces now on the current device, also those of the thread that runs backward passes.
// They last as long as the process, so they must not come from a source.
void make_cublas_workspaces();

// Memory of the caching allocator that one graph alone uses, for as long as the graph lives: its addresses are in the
// graph.
class GraphPool {
 public:
  explicit GraphPool(c10::DeviceIndex device);
  ~GraphPool();
  GraphPool(const GraphPool&) = delete;
  GraphPool& operator=(const GraphPool&) = delete;

  // While it lives, the caching allocator serves that stream from the pool.
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

// Returns unused memory of the caching allocator to the driver.
void release_cuda_cache();

}  // namespace tandem::device
