#include "device/exchange_chunks.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::device {

std::vector<Chunk> chunks_of(std::span<const Piece> pieces, int rank, int64_t chunk_bytes) {
  TANDEM_CHECK(chunk_bytes > 0 && chunk_bytes % kSectionAlignment == 0, "bytes of a chunk:", chunk_bytes);
  std::vector<Chunk> chunks;
  int64_t offset = chunk_bytes;  // end of the last chunk; it begins as full
  for (const Piece& piece : pieces) {
    if (piece.rank != rank) continue;
    for (int64_t begin = 0; begin < piece.bytes;) {
      if (offset >= chunk_bytes) {
        chunks.emplace_back();
        offset = 0;
      }
      const int64_t bytes = std::min(piece.bytes - begin, chunk_bytes - offset);
      chunks.back().push_back({.data = piece.data + begin, .bytes = bytes, .offset = offset});
      begin += bytes;
      offset += (bytes + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
    }
  }
  return chunks;
}

}  // namespace tandem::device
