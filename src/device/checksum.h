// A checksum of 128 bits of bytes that may lie on any device. It is a sum, so any order of adding gives the same
// number, on every backend. It detects bytes that were changed on the way or read too early; it is no protection
// against an attacker. No torch.
//
// The n bytes are words w_0, w_1, ... of 64 bits, little-endian, the last one filled up with zeros. Modulo 2^64:
//   first  = n + sum over i of first_mix(w_i + (i + 1) * kFirstStep)
//   second = n + sum over i of second_mix(w_i ^ (i + 1) * kSecondStep)
// Both mixes are bijections, so a change within one word changes both sums. Other changes are missed once in 2^128, as
// far as the mixes are like random functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/host_device.h"

namespace tandem::device {

struct Checksum {
  uint64_t first = 0, second = 0;
  friend bool operator==(const Checksum&, const Checksum&) = default;
};

constexpr uint64_t kFirstStep = 0x9e3779b97f4a7c15, kSecondStep = 0xd1342543de82ef95;

// This is MurmurHash3's 64-bit finalizer.
TANDEM_HOST_DEVICE constexpr uint64_t first_mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccd;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53;
  return x ^ (x >> 33);
}
// The second mix has the form of first_mix() and other constants. Shifts by half a word are the cheapest on a GPU.
TANDEM_HOST_DEVICE constexpr uint64_t second_mix(uint64_t x) {
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93;
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93;
  return x ^ (x >> 32);
}

TANDEM_HOST_DEVICE constexpr void add_word(uint64_t word, uint64_t index, Checksum& sum) {
  sum.first += first_mix(word + (index + 1) * kFirstStep);
  sum.second += second_mix(word ^ ((index + 1) * kSecondStep));
}

Checksum checksum_of(std::span<const std::byte> bytes);

// Adds a piece of a longer run of bytes to the sum of its words, where `first_word` is the piece's first. A piece that
// is not the last one has a multiple of 8 bytes. The sum begins with the number of bytes in both parts.
void add_piece(std::span<const std::byte> piece, uint64_t first_word, Checksum& sum);

}  // namespace tandem::device
