// Checksums of a device's bytes that are computed on the host: pieces come through pinned memory, and while one is
// summed the next is copied. No torch.
#pragma once

#include "device/checksum.h"
#include "device/host_memory.h"

namespace tandem::device {

class HostChecksums {
 public:
  // Takes twice `piece_bytes` of pinned memory, a multiple of 8. Throws EnvironmentError where the host has too little.
  // `memory` outlives this object.
  explicit HostChecksums(HostMemory& memory, int64_t piece_bytes = int64_t{64} << 20);
  ~HostChecksums();
  HostChecksums(const HostChecksums&) = delete;
  HostChecksums& operator=(const HostChecksums&) = delete;

  // The caller has waited for work that writes these bytes.
  Checksum of(const std::byte* device, int64_t bytes);

 private:
  HostMemory& memory_;
  int64_t piece_bytes_;
  std::byte* host_;
};

}  // namespace tandem::device
