// The memory that torch_npu computes in: its allocator calls this one for every tensor. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "device/allocator_hook.h"
#include "device/npu/acl_calls.h"

namespace tandem::device {

// It asks the source first. What the source does not serve comes from a cache over AscendCL's allocations, which keeps
// what is freed: torch_npu frees a tensor while work that reads it still waits in its queue, so memory may be used
// again by later work, but not given back before that queue is empty. Calls may come from any thread.
class NpuTensorMemory {
 public:
  // `synchronize` empties torch_npu's queue and waits for the device. `acl` outlives this object.
  NpuTensorMemory(const npu::AclCalls& acl, int index, std::function<void()> synchronize);
  ~NpuTensorMemory();  // gives everything back, whoever uses it; work has ended
  NpuTensorMemory(const NpuTensorMemory&) = delete;
  NpuTensorMemory& operator=(const NpuTensorMemory&) = delete;

  // Null means that there is no source. There is one at a time, and its memory may be freed later, as long as it is
  // set.
  void set_source(AllocatorHook* source);

  // Returns at least block_bytes(bytes), aligned to 512. Throws EnvironmentError where neither the source nor the
  // device has memory, also after unused memory was given back.
  std::byte* allocate(int64_t bytes);
  void free(std::byte* address);
  // Gives unused memory back to the device, after it has synchronised.
  void release_unused();

  // The bytes of a block for a tensor of so many: kernels read up to 32 bytes beyond the end of their operands, and
  // blocks are multiples of 512.
  static int64_t block_bytes(int64_t bytes) { return (bytes + 32 + 511) / 512 * 512; }

 private:
  // A piece of memory that AscendCL allocated, cut into blocks of one size; a large block has a piece of its own.
  struct Piece {
    int64_t bytes = 0;
    int64_t block_bytes = 0;
    int64_t num_used = 0;
  };
  std::byte* take_block(int64_t bytes);      // null where the device is full
  std::byte* allocate_piece(int64_t bytes);  // null where the device is full

  npu::AclDevice device_;
  std::function<void()> synchronize_;
  std::mutex mutex_;
  AllocatorHook* source_ = nullptr;
  std::map<std::byte*, Piece> pieces_;
  std::map<int64_t, std::vector<std::byte*>> unused_;  // blocks by their size
};

}  // namespace tandem::device
