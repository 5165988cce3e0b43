// Inner loops that a sanitizer would slow down several times check what they read and write as ranges, before they
// begin, and not access by access.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace tandem::device::cpu {

// Marks such a loop. GCC inlines only functions that are [[gnu::always_inline]] into it.
#define TANDEM_RANGES_ARE_CHECKED __attribute__((no_sanitize("address", "undefined")))

// With ASan, touches the first byte of the range that may not be touched, which reports it. Otherwise does nothing.
inline void check_range([[maybe_unused]] const void* begin, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  void* const bad = bytes == 0 ? nullptr : __asan_region_is_poisoned(const_cast<void*>(begin), bytes);
  if (bad != nullptr) *static_cast<volatile const char*>(bad);
#endif
}

}  // namespace tandem::device::cpu
