// The exchange of ranks that share experts (device/expert_exchange.h) where GPUs read each other's memory: two kernels
// a layer. In each a rank writes where the others see it, flags it, waits until they have done so, and reads what they
// wrote. Nothing is written that another rank may still read: between two gathers every rank has been in the sum of the
// first, and between two sums in the gather of the second. No torch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/cuda/ranks/peer_sum.h"
#include "device/cuda/scratch.h"

namespace tandem::device::cuda {

// The memory of one rank that the others map begins with the numbers of the last gather, and the last sum, for which a
// rank's part was ready; it begins as zeros. Its rows, and the results of its experts, come after.
struct PeerExpertsFlags {
  uint32_t ready[2][kPeerExpertsBlocks][kMostPeers];
};
static_assert(sizeof(PeerExpertsFlags) == kPeerExpertsFlagBytes && kMostPeers == kMostExpertRanks);

// The kernels get it by value. `numbers` [2][kPeerExpertsBlocks] counts gathers and sums so far, for this rank alone,
// on the device; it begins as zeros.
struct PeerExperts {
  int rank = 0, size = 1;
  PeerExpertsFlags* flags[kMostPeers] = {};
  __nv_bfloat16* rows[kMostPeers] = {};     // [most rows, E]
  __nv_bfloat16* results[kMostPeers] = {};  // [most places, E]
  int first_expert[kMostPeers + 1] = {};    // experts [first_expert[r], first_expert[r + 1]) are rank r's
  uint32_t* numbers = nullptr;
  const uint32_t* is_given_up = nullptr;  // word in host memory; not 0 ends all waits, and results then mean nothing
};

// Copies n numbers, a multiple of 8, of each rank to all [size n]: those of rank 0 first.
cudaError_t gather_rows_of_peers(const PeerExperts& peers, const __nv_bfloat16* own, int64_t n, __nv_bfloat16* all,
                                 cudaStream_t stream);

// The places of a rank's own tokens, [T, C], as all ranks count them: each lies in the results of the rank that has its
// expert.
struct PeerPlaces {
  const int32_t* ids;
  const float* weights;
  const int32_t* places;
  int num_chosen;
};
// Computes out_TE = residual + the weighted sum of each token's places by rising c, as sum_of_experts() of
// experts/places.h. Every rank launches it with as many tokens.
cudaError_t sum_of_peers_experts(const PeerExperts& peers, const PeerPlaces& places, const __nv_bfloat16* residual,
                                 __nv_bfloat16* out, int64_t T, int64_t E, cudaStream_t stream);

}  // namespace tandem::device::cuda
