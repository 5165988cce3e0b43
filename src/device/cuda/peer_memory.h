// Memory on each rank's GPU that the other ranks, processes of one host, map: they read and write it as their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/communicator.h"

namespace tandem::device::cuda {

class PeerMemory {
 public:
  // `bytes` on the current device, zeroed. Every rank calls it, with the communicator between their hosts. Null, on
  // every rank, where some cannot map another's.
  static std::unique_ptr<PeerMemory> open(int64_t bytes, Communicator& hosts);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  int size() const { return static_cast<int>(memory_.size()); }
  int rank() const { return rank_; }
  // Of that rank, as this process sees it.
  std::byte* of(int rank) const { return memory_[static_cast<size_t>(rank)]; }

 private:
  explicit PeerMemory(const Communicator& hosts)
      : rank_(hosts.rank()), memory_(static_cast<size_t>(hosts.size()), nullptr) {}

  const int rank_;
  std::vector<std::byte*> memory_;  // by rank
};

}  // namespace tandem::device::cuda
