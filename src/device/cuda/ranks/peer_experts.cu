// peer_experts.h has the contract.
#include "device/cuda/eights.cuh"
#include "device/cuda/ranks/peer_experts.h"
#include "device/cuda/ranks/peer_flags.cuh"

namespace tandem::device::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kThreads = 256;
constexpr int kGather = 0, kSum = 1;  // the flags of each kernel

// Blocks are so many that each thread has one eight, up to a wave of them.
int blocks_for(int64_t eights) {
  const int64_t blocks = (eights + kThreads - 1) / kThreads;
  return static_cast<int>(blocks < kPeerExpertsBlocks ? blocks : kPeerExpertsBlocks);
}

// Waits until this block of every rank is here. What any rank wrote before is seen after.
__device__ void meet(const PeerExperts& peers, int kernel) {
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  uint32_t* const number = &peers.numbers[kernel * kPeerExpertsBlocks + block];
  const uint32_t next = *number + 1;
  __syncthreads();
  if (thread < peers.size && thread != peers.rank) {
    __threadfence_system();
    store_released(&peers.flags[thread]->ready[kernel][block][peers.rank], next);
    wait_until(&peers.flags[peers.rank]->ready[kernel][block][thread], next, peers.is_given_up);
  }
  __syncthreads();
  if (thread == 0) *number = next;
}

__global__ void __launch_bounds__(kThreads)
    gather_rows_kernel(PeerExperts peers, const bf16* own, int64_t eights, bf16* all) {
  const int64_t begin = eights * blockIdx.x / gridDim.x, end = eights * (blockIdx.x + 1) / gridDim.x;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const uint4 x = reinterpret_cast<const uint4*>(own)[i];
    reinterpret_cast<uint4*>(peers.rows[peers.rank])[i] = x;
    reinterpret_cast<uint4*>(all)[peers.rank * eights + i] = x;
  }
  meet(peers, kGather);
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    uint4 x[kMostPeers];
#pragma unroll
    for (int r = 0; r < kMostPeers; ++r) {
      if (r < peers.size && r != peers.rank) x[r] = reinterpret_cast<const uint4*>(peers.rows[r])[i];
    }
#pragma unroll
    for (int r = 0; r < kMostPeers; ++r) {
      if (r < peers.size && r != peers.rank) reinterpret_cast<uint4*>(all)[r * eights + i] = x[r];
    }
  }
}

// All loads of kAhead places are in flight before the first is used: another GPU's memory is 2 us away.
template <int kAhead>
__global__ void __launch_bounds__(kThreads)
    sum_of_peers_experts_kernel(PeerExperts peers, PeerPlaces own, const bf16* residual, bf16* out, int64_t eights,
                                int64_t row_eights) {
  meet(peers, kSum);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < eights;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t token = i / row_eights, column = i % row_eights, first_of_token = token * own.num_chosen;
    float kept[kEight], sum[kEight] = {};
    load_eight(residual + i * kEight, kept);
    for (int first = 0; first < own.num_chosen; first += kAhead) {
      float weight[kAhead], x[kAhead][kEight];
      int rank = 0;  // ids rise
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if (first + a >= own.num_chosen) break;
        const int64_t c = first_of_token + first + a;
        while (own.ids[c] >= peers.first_expert[rank + 1]) ++rank;
        weight[a] = own.weights[c];
        load_eight(peers.results[rank] + (own.places[c] * row_eights + column) * kEight, x[a]);
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if (first + a >= own.num_chosen) break;
#pragma unroll
        for (int j = 0; j < kEight; ++j) sum[j] = __fmaf_rn(weight[a], x[a][j], sum[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kEight; ++j) sum[j] = kept[j] + sum[j];
    store_eight(out + i * kEight, sum);
  }
}

}  // namespace

cudaError_t gather_rows_of_peers(const PeerExperts& peers, const bf16* own, int64_t n, bf16* all, cudaStream_t stream) {
  const int64_t eights = n / kEight;
  gather_rows_kernel<<<blocks_for(eights), kThreads, 0, stream>>>(peers, own, eights, all);
  return cudaGetLastError();
}

cudaError_t sum_of_peers_experts(const PeerExperts& peers, const PeerPlaces& places, const bf16* residual, bf16* out,
                                 int64_t T, int64_t E, cudaStream_t stream) {
  const int64_t eights = T * E / kEight;
  sum_of_peers_experts_kernel<8><<<blocks_for(eights), kThreads, 0, stream>>>(peers, places, residual, out, eights,
                                                                             E / kEight);
  return cudaGetLastError();
}

}  // namespace tandem::device::cuda
