// Flags by which GPUs that map each other's memory tell each other, in the middle of a kernel, that something is there.
// A flag is a number that rises: what was written before it was stored is seen by who has found it.
#pragma once

#include <cstdint>

namespace tandem::device::cuda {

// Reading the host's memory takes as long as a whole sum.
constexpr uint32_t kLooksBeforeHost = 1U << 14;

__device__ inline void store_released(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ inline uint32_t load_acquired(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
// Waits until the flag is that number or, since a rank may be ahead, a later one; or until it is given up.
__device__ inline void wait_until(const uint32_t* flag, uint32_t number, const uint32_t* is_given_up) {
  for (uint32_t looks = 1; static_cast<int32_t>(load_acquired(flag) - number) < 0; ++looks) {
    if (looks % kLooksBeforeHost == 0 && load_acquired(is_given_up) != 0) break;
  }
}

}  // namespace tandem::device::cuda
