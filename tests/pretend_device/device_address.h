// Addresses on a pretended device: those of the host with a bit that no mapping of a process has, so that a host which
// reads or writes there is ended by a fault. No torch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace tandem::pretend_device {

constexpr uintptr_t kDeviceBit = uintptr_t{1} << 54;

inline std::byte* on_device(void* host) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(host) | kDeviceBit);
}

// Throws BugError if `address` is not on a device.
inline std::byte* on_host(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address);
  TANDEM_CHECK((bits & kDeviceBit) != 0, "an address of the host where the device computes");
  return reinterpret_cast<std::byte*>(bits & ~kDeviceBit);
}

}  // namespace tandem::pretend_device
