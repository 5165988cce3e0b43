#include "device/npu/npu_checksum.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::device {

HostChecksums::HostChecksums(HostMemory& memory, int64_t piece_bytes)
    : memory_(memory), piece_bytes_(piece_bytes), host_(memory.allocate(2 * piece_bytes)) {
  TANDEM_CHECK(piece_bytes % static_cast<int64_t>(sizeof(uint64_t)) == 0, piece_bytes);
  TANDEM_ENV_CHECK(host_ != nullptr, "no", 2 * piece_bytes,
                   "bytes of pinned memory for checksums of weights; free memory of the host");
}

HostChecksums::~HostChecksums() { memory_.free(host_, 2 * piece_bytes_); }

Checksum HostChecksums::of(const std::byte* device, int64_t bytes) {
  Checksum sum = {.first = static_cast<uint64_t>(bytes), .second = static_cast<uint64_t>(bytes)};
  const auto piece_at = [&](int64_t first) { return std::min(piece_bytes_, bytes - first); };
  std::byte *arriving = host_, *there = host_ + piece_bytes_;
  if (bytes > 0) memory_.copy_to_host(arriving, device, piece_at(0));
  for (int64_t first = 0; first < bytes; first += piece_bytes_) {
    memory_.synchronize();
    std::swap(arriving, there);
    const int64_t next = first + piece_bytes_;
    if (next < bytes) memory_.copy_to_host(arriving, device + next, piece_at(next));
    add_piece({there, static_cast<size_t>(piece_at(first))}, static_cast<uint64_t>(first) / sizeof(uint64_t), sum);
  }
  return sum;
}

}  // namespace tandem::device
