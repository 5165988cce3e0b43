// HostMemory where the device is the CPU: plain memory in huge pages, and memcpy. No torch.
#pragma once

#include <map>

#include "device/host_memory.h"

namespace tandem::device {

class CpuHostMemory : public HostMemory {
 public:
  std::byte* allocate(int64_t bytes) override;
  void free(std::byte* host, int64_t bytes) override;
  void copy_to_host(std::byte* host, const std::byte* device, int64_t bytes) override;
  void copy_to_device(std::byte* device, const std::byte* host, int64_t bytes) override;
  void synchronize() override {}

 private:
  std::map<std::byte*, int64_t> allocations_;
};

}  // namespace tandem::device
