#include "tests/pretend_device/pretend_memory.h"

#include "tests/pretend_device/device_address.h"

namespace tandem::pretend_device {

std::byte* DeviceVmm::reserve_addresses(int64_t bytes) {
  std::byte* const host = CpuVmm::reserve_addresses(bytes);
  return host == nullptr ? nullptr : on_device(host);
}
void DeviceVmm::free_addresses(std::byte* address, int64_t bytes) { CpuVmm::free_addresses(on_host(address), bytes); }
bool DeviceVmm::map(std::byte* address, device::ExtentId extent) { return CpuVmm::map(on_host(address), extent); }
void DeviceVmm::unmap(std::byte* address, int64_t bytes) { CpuVmm::unmap(on_host(address), bytes); }
bool DeviceVmm::open_access(std::byte* address, int64_t bytes) { return CpuVmm::open_access(on_host(address), bytes); }

void PinnedMemory::copy_to_host(std::byte* host, const std::byte* device, int64_t bytes) {
  CpuHostMemory::copy_to_host(host, on_host(device), bytes);
}
void PinnedMemory::copy_to_device(std::byte* device, const std::byte* host, int64_t bytes) {
  CpuHostMemory::copy_to_device(on_host(device), host, bytes);
}

}  // namespace tandem::pretend_device
