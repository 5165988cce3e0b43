// peer_sum.h has the contract.
#include "device/cuda/eights.cuh"
#include "device/cuda/ranks/peer_flags.cuh"
#include "device/cuda/ranks/peer_sum.h"

namespace tandem::device::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kAhead = 4;  // eights that a thread waits for at once: another GPU's memory is 2 us away

template <typename Part, typename Sum>
__global__ void __launch_bounds__(kThreads)
    peer_sum_kernel(Peers peers, const Part* part, const Sum* residual, Sum* sum, int64_t eights) {
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int64_t begin = eights * block / gridDim.x, end = eights * (block + 1) / gridDim.x;
  const uint32_t number = peers.num_sums[block] + 1;
  const auto place_of = [&](int rank) {
    return reinterpret_cast<Part*>(peers.memory[rank]->places[number % 2][block]);
  };

  Part* const own = place_of(peers.rank);
  for (int64_t i = begin + thread; i < end; i += kThreads) {
    const uint4* const from = reinterpret_cast<const uint4*>(part + i * kEight);
    uint4* const to = reinterpret_cast<uint4*>(own + (i - begin) * kEight);
#pragma unroll
    for (int j = 0; j < static_cast<int>(kEight * sizeof(Part) / sizeof(uint4)); ++j) to[j] = from[j];
  }
  __syncthreads();
  if (thread < peers.size && thread != peers.rank) {
    __threadfence_system();
    store_released(&peers.memory[thread]->ready[block][peers.rank], number);
    // A rank may be one sum ahead.
    wait_until(&peers.memory[peers.rank]->ready[block][thread], number, peers.is_given_up);
  }
  __syncthreads();

  // This is place_of() with the address that element 0 of the part would have.
  const auto part_of = [&](int rank) { return place_of(rank) - begin * kEight; };
  for (int64_t i = begin + thread; i < end; i += kAhead * kThreads) {
    add_up<kAhead, kMostPeers>(part_of, peers.size, residual, sum, i, kThreads, end);
  }
  __syncthreads();
  if (thread == 0) peers.num_sums[block] = number;
}

template <typename Part, typename Sum>
cudaError_t launch(const Peers& peers, const void* part, const void* residual, void* sum, int64_t n,
                   cudaStream_t stream) {
  constexpr int64_t kEightsOfBlock = 256;  // least eights of a block: fewer are not worth one
  const int64_t eights = n / kEight;
  int64_t blocks = (eights + kEightsOfBlock - 1) / kEightsOfBlock;
  if (blocks > kPeerBlocks) blocks = kPeerBlocks;
  peer_sum_kernel<Part, Sum><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      peers, static_cast<const Part*>(part), static_cast<const Sum*>(residual), static_cast<Sum*>(sum), eights);
  return cudaGetLastError();
}

}  // namespace

cudaError_t peer_sum(const Peers& peers, const void* part, bool part_is_float32, const void* residual, void* sum,
                     bool sum_is_float32, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  if (part_is_float32) {
    return sum_is_float32 ? launch<float, float>(peers, part, residual, sum, n, stream)
                          : launch<float, __nv_bfloat16>(peers, part, residual, sum, n, stream);
  }
  return sum_is_float32 ? launch<__nv_bfloat16, float>(peers, part, residual, sum, n, stream)
                        : launch<__nv_bfloat16, __nv_bfloat16>(peers, part, residual, sum, n, stream);
}

}  // namespace tandem::device::cuda
