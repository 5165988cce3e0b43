// Randomness as a function: Philox4x32-10 (Salmon et al., SC'11, "Parallel random numbers: as easy as
// 1, 2, 3") of a key and a counter. There is no generator state: the same arguments give the same
// number on any machine, thread, GPU and batch slot, so nothing has to be saved or ordered.
#pragma once

#include <array>
#include <cstdint>

#include "base/host_device.h"

namespace tandem::base {

// Runs ten rounds on the four words of `counter`, in place. It is a plain array, because nvcc has no std::array on the
// GPU.
TANDEM_HOST_DEVICE inline void philox_rounds(uint64_t key, uint32_t (&counter)[4]) {
  constexpr uint32_t kMul0 = 0xD2511F53, kMul1 = 0xCD9E8D57;  // the paper's multipliers
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{kMul0} * counter[0];
    const uint64_t p1 = uint64_t{kMul1} * counter[2];
    counter[0] = static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0;
    counter[1] = static_cast<uint32_t>(p1);
    counter[2] = static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1;
    counter[3] = static_cast<uint32_t>(p0);
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
}

// Returns one Philox4x32-10 block: 128 counter bits and 64 key bits give four words.
inline std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
  uint32_t c[4] = {static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                   static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  philox_rounds(key, c);
  return {c[0], c[1], c[2], c[3]};
}

// Returns a double in [0, 1) with 53 random bits.
TANDEM_HOST_DEVICE inline double uniform(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
  uint32_t c[4] = {static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                   static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  philox_rounds(key, c);
  const uint64_t bits = (uint64_t{c[0]} << 32) | c[1];
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace tandem::base
