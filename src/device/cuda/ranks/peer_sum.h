// A sum over ranks whose GPUs read each other's memory, in one kernel: each rank writes its part where the others see
// it, flags it, waits until they have done so, and adds all parts up in the order of ranks. No torch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tandem::device::cuda {

constexpr int kMostPeers = 8;
// A block of the kernel has two places of its own for its stretch of a part, used in turn: while the others still read
// the one, the next part goes into the other.
constexpr int kPeerBlocks = 64;
constexpr int64_t kPeerStretchBytes = int64_t{128} << 10;
constexpr int64_t kPeerPartBytes = kPeerBlocks * kPeerStretchBytes;  // bytes of the largest part

// The memory of one rank that the others map: the places, and for each block and rank the number of the last sum that
// this rank's stretch was ready for. It begins as zeros.
struct SumMemory {
  std::byte places[2][kPeerBlocks][kPeerStretchBytes];
  uint32_t ready[kPeerBlocks][kMostPeers];
};

// The kernel gets it by value.
struct Peers {
  int rank = 0, size = 1;
  SumMemory* memory[kMostPeers] = {};
  uint32_t* num_sums = nullptr;  // [kPeerBlocks] sums so far, for this rank alone, on the device; begins as zeros
  const uint32_t* is_given_up = nullptr;  // word in host memory; not 0 ends all waits, and sums then mean nothing
};

// Computes sum [n] = ((part of rank 0 + part of rank 1) + ...) in float32, rounded to the sum's dtype; then residual +
// that, rounded again, unless `residual`, of the sum's dtype, is null. Every rank launches the same sums in the same
// order, each after the one before. n is a multiple of 8, a part is at most kPeerPartBytes, and all are 16-byte
// aligned.
cudaError_t peer_sum(const Peers& peers, const void* part, bool part_is_float32, const void* residual, void* sum,
                     bool sum_is_float32, int64_t n, cudaStream_t stream);

}  // namespace tandem::device::cuda
