#include "device/checksum.h"

#include <bit>
#include <cstring>

namespace tandem::device {

static_assert(std::endian::native == std::endian::little, "words are read as they lie");

void add_piece(std::span<const std::byte> piece, uint64_t first_word, Checksum& sum) {
  const size_t num_whole = piece.size() / sizeof(uint64_t);
  uint64_t word = 0;
  for (size_t i = 0; i < num_whole; ++i) {
    std::memcpy(&word, piece.data() + i * sizeof word, sizeof word);
    add_word(word, first_word + i, sum);
  }
  if (const size_t rest = piece.size() % sizeof word; rest > 0) {
    word = 0;
    std::memcpy(&word, piece.data() + num_whole * sizeof word, rest);
    add_word(word, first_word + num_whole, sum);
  }
}

Checksum checksum_of(std::span<const std::byte> bytes) {
  Checksum sum = {.first = bytes.size(), .second = bytes.size()};
  add_piece(bytes, 0, sum);
  return sum;
}

}  // namespace tandem::device
