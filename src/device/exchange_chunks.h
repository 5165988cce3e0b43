// Cuts the bytes that one rank sends to another into chunks, so that they fit through a buffer of a fixed size one
// after the other. A chunk has sections of the tensors that are sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/exchange_pieces.h"

namespace tandem::device {

struct Section {
  std::byte* data = nullptr;  // start of the section in its tensor
  int64_t bytes = 0;
  int64_t offset = 0;  // offset in the chunk, a multiple of kSectionAlignment
};
using Chunk = std::vector<Section>;

constexpr int64_t kSectionAlignment = 256;

// Returns the chunks of those pieces that are for, or from, `rank`. chunk_bytes is a multiple of the alignment. Sender
// and receiver, whose pieces have the same sizes, get chunks of the same offsets.
std::vector<Chunk> chunks_of(std::span<const Piece> pieces, int rank, int64_t chunk_bytes);

}  // namespace tandem::device
