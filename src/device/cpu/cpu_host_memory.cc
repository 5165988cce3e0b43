#include "device/cpu/cpu_host_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "device/cpu/cpu_vmm.h"

namespace tandem::device {

std::byte* CpuHostMemory::allocate(int64_t bytes) {
  TANDEM_CHECK(bytes > 0, bytes);
  // Linux promises more than it has and ends the process on the first touch, so the free memory is checked before.
  if (bytes > available_host_bytes()) return nullptr;
  void* host = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (host == MAP_FAILED) return nullptr;
  ::madvise(host, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a hint: small pages work too
  allocations_[static_cast<std::byte*>(host)] = bytes;
  return static_cast<std::byte*>(host);
}

void CpuHostMemory::free(std::byte* host, int64_t bytes) {
  const auto allocation = allocations_.find(host);
  TANDEM_CHECK(allocation != allocations_.end() && allocation->second == bytes, bytes,
               "bytes that were not allocated so");
  TANDEM_ENV_CHECK(::munmap(host, static_cast<size_t>(bytes)) == 0, "munmap of", bytes, "bytes:", std::strerror(errno));
  allocations_.erase(allocation);
}

void CpuHostMemory::copy_to_host(std::byte* host, const std::byte* device, int64_t bytes) {
  std::memcpy(host, device, static_cast<size_t>(bytes));
}

void CpuHostMemory::copy_to_device(std::byte* device, const std::byte* host, int64_t bytes) {
  std::memcpy(device, host, static_cast<size_t>(bytes));
}

}  // namespace tandem::device
