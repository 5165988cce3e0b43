#include "device/checksum.h"

#include <bit>
#include <cstring>

namespace tandem::device {

static_assert(std::endian::native == std::endian::little, "words are read as they lie");

Checksum checksum_of(std::span<const std::byte> bytes) {
  Checksum sum = {.first = bytes.size(), .second = bytes.size()};
  const size_t num_whole = bytes.size() / sizeof(uint64_t);
  uint64_t word = 0;
  for (size_t i = 0; i < num_whole; ++i) {
    std::memcpy(&word, bytes.data() + i * sizeof word, sizeof word);
    add_word(word, i, sum);
  }
  if (const size_t rest = bytes.size() % sizeof word; rest > 0) {
    word = 0;
    std::memcpy(&word, bytes.data() + num_whole * sizeof word, rest);
    add_word(word, num_whole, sum);
  }
  return sum;
}

}  // namespace tandem::device
