// How the bytes that one rank sends to another go through a place of a fixed size: one chunk after the other, each of
// sections of the tensors that are sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/exchange_pieces.h"

namespace tandem::device {

struct Section {
  std::byte* data = nullptr;  // in a tensor
  int64_t bytes = 0;
  int64_t offset = 0;  // in the chunk: a multiple of kSectionAlignment
};
using Chunk = std::vector<Section>;

constexpr int64_t kSectionAlignment = 256;

// Of those pieces that are for, or from, `rank`; chunk_bytes: a multiple of the alignment. Sender and receiver, whose
// pieces have the same sizes, get chunks of the same offsets.
std::vector<Chunk> chunks_of(std::span<const Piece> pieces, int rank, int64_t chunk_bytes);

}  // namespace tandem::device
