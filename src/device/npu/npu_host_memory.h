// Implements HostMemory for an Ascend NPU: AscendCL's pinned memory, and two streams, one for each direction. No torch.
#pragma once

#include <map>

#include "device/host_memory.h"
#include "device/npu/acl_calls.h"

namespace tandem::device {

class NpuHostMemory : public HostMemory {
 public:
  // Throws EnvironmentError where there is no such device. `acl` outlives this object.
  explicit NpuHostMemory(const npu::AclCalls& acl, int index = 0);
  ~NpuHostMemory() override;  // waits for copies, and frees allocations that were not freed
  NpuHostMemory(const NpuHostMemory&) = delete;
  NpuHostMemory& operator=(const NpuHostMemory&) = delete;

  std::byte* allocate(int64_t bytes) override;
  void free(std::byte* host, int64_t bytes) override;
  void copy_to_host(std::byte* host, const std::byte* device, int64_t bytes) override;
  void copy_to_device(std::byte* device, const std::byte* host, int64_t bytes) override;
  void synchronize() override;

 private:
  void check_within_an_allocation(const std::byte* host, int64_t bytes) const;
  void copy(void* to, const void* from, int64_t bytes, int32_t kind, npu::AclStream stream);

  npu::AclDevice device_;
  npu::AclStream to_host_stream_ = nullptr, to_device_stream_ = nullptr;
  std::map<const std::byte*, int64_t> allocations_;
};

}  // namespace tandem::device
