// The memory that the CUDA kernels take in addition to their arguments and results, for their callers and for the
// memory plan. No torch and no CUDA.
#pragma once

#include <cstdint>

namespace tandem::device::cuda {

// Returns how many blocks give partial sums of a weight's gradient for T rows: four on each of 132 multiprocessors.
constexpr int64_t num_partials(int64_t T) {
  constexpr int64_t kMost = 528;
  return T < kMost ? T : kMost;
}

// Returns the bytes in which embedding_backward() sorts its ids.
constexpr int64_t embedding_backward_scratch(int64_t num_tokens) { return 8 * num_tokens; }

// Places of experts are ordered by tiles of so many tokens, whose counts by expert lie in order_places_scratch() int32;
// a single tile needs none.
constexpr int64_t kOrderTileTokens = 512;
constexpr int64_t order_places_scratch(int64_t T, int64_t num_experts) {
  return T <= kOrderTileTokens ? 0 : (T + kOrderTileTokens - 1) / kOrderTileTokens * num_experts;
}

// The memory that ranks show each other where they share experts (ranks/peer_experts.h): flags of every block of two
// kernels, the own rows of one rank, and the results of all ranks' places in bfloat16.
constexpr int kPeerExpertsBlocks = 128, kMostExpertRanks = 8;
constexpr int64_t kPeerExpertsFlagBytes = int64_t{2} * kPeerExpertsBlocks * kMostExpertRanks * 4;
constexpr int64_t peer_experts_bytes(int64_t most_rows, int64_t ranks, int64_t hidden, int64_t num_chosen) {
  return kPeerExpertsFlagBytes + most_rows * (1 + ranks * num_chosen) * hidden * 2;
}

}  // namespace tandem::device::cuda
