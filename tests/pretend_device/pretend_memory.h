// Virtual memory and pinned host memory of a pretended device: those of the CPU, at addresses that the host cannot
// touch. No torch.
#pragma once

#include "device/cpu/cpu_host_memory.h"
#include "device/cpu/cpu_vmm.h"

namespace tandem::pretend_device {

class DeviceVmm final : public device::CpuVmm {
 public:
  using CpuVmm::CpuVmm;

  std::byte* reserve_addresses(int64_t bytes) override;
  void free_addresses(std::byte* address, int64_t bytes) override;
  bool map(std::byte* address, device::ExtentId extent) override;
  void unmap(std::byte* address, int64_t bytes) override;
  bool open_access(std::byte* address, int64_t bytes) override;
};

class PinnedMemory final : public device::CpuHostMemory {
 public:
  void copy_to_host(std::byte* host, const std::byte* device, int64_t bytes) override;
  void copy_to_device(std::byte* device, const std::byte* host, int64_t bytes) override;
};

}  // namespace tandem::pretend_device
