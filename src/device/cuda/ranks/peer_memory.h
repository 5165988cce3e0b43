// Memory on each rank's GPU that the other ranks, processes of one host, map: they read and write it as their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/communicator.h"

namespace tandem::device::cuda {

class PeerMemory {
 public:
  // Opens `bytes` on device `index`, zeroed. Every rank calls it, with the communicator between their hosts. Returns
  // null, on every rank, where some rank cannot map another's memory.
  static std::unique_ptr<PeerMemory> open(int index, int64_t bytes, Communicator& hosts);
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  int size() const { return static_cast<int>(memory_.size()); }
  int rank() const { return rank_; }
  // Returns that rank's memory at this process's address.
  std::byte* of(int rank) const {
    return static_cast<std::byte*>(memory_[static_cast<size_t>(rank)].mutable_data_ptr());
  }

 private:
  PeerMemory(int rank, std::vector<at::Tensor> memory) : rank_(rank), memory_(std::move(memory)) {}

  const int rank_;
  const std::vector<at::Tensor> memory_;  // bytes by rank; undefined: allocation or mapping failed
};

}  // namespace tandem::device::cuda
