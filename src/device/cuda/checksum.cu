// checksum.h has the contract. The kernel reads sixteen bytes, two words, at a time.
#include "device/cuda/checksum.h"
#include "device/cuda/vectors.cuh"

namespace tandem::device::cuda {
namespace {

using Sum = unsigned long long;  // type of atomicAdd()
constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kLoads = 4;             // loads in flight in a thread
constexpr int64_t kMostBlocks = 792;  // six on each of 132 multiprocessors: as many as run at once

__device__ void add_pair(ulonglong2 pair, int64_t i, Checksum& sum) {
  add_word(pair.x, static_cast<uint64_t>(2 * i), sum);
  add_word(pair.y, static_cast<uint64_t>(2 * i + 1), sum);
}

// Adds the bytes after the last pair, in no more than two words, and the number of all bytes.
__device__ void add_end(const unsigned char* data, int64_t num_bytes, Checksum& sum) {
  sum.first += static_cast<uint64_t>(num_bytes);
  sum.second += static_cast<uint64_t>(num_bytes);
  for (int64_t begin = num_bytes / 16 * 16; begin < num_bytes; begin += 8) {
    uint64_t word = 0;
    for (int64_t at = begin; at < begin + 8 && at < num_bytes; ++at) {
      word |= static_cast<uint64_t>(data[at]) << (8 * (at - begin));
    }
    add_word(word, static_cast<uint64_t>(begin / 8), sum);
  }
}

__device__ Sum warp_total(Sum x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

__global__ void __launch_bounds__(kThreads) checksum_kernel(const void* data, int64_t num_bytes, Checksum* total) {
  const ulonglong2* const pairs = static_cast<const ulonglong2*>(data);
  const int64_t num_pairs = num_bytes / 16, stride = static_cast<int64_t>(gridDim.x) * kThreads;
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  Checksum sum;
  if (i == 0) add_end(static_cast<const unsigned char*>(data), num_bytes, sum);
  for (; i + (kLoads - 1) * stride < num_pairs; i += kLoads * stride) {
    ulonglong2 loaded[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) loaded[j] = pairs[i + j * stride];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) add_pair(loaded[j], i + j * stride, sum);
  }
  for (; i < num_pairs; i += stride) add_pair(pairs[i], i, sum);

  __shared__ Sum of_warps[2][kWarps];
  const Sum first = warp_total(sum.first), second = warp_total(sum.second);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (threadIdx.x % kWarp == 0) {
    of_warps[0][warp] = first;
    of_warps[1][warp] = second;
  }
  __syncthreads();
  if (threadIdx.x > 1) return;
  Sum of_block = 0;
  for (int w = 0; w < kWarps; ++w) of_block += of_warps[threadIdx.x][w];
  atomicAdd(reinterpret_cast<Sum*>(threadIdx.x == 0 ? &total->first : &total->second), of_block);
}

}  // namespace

cudaError_t add_checksum(const void* data, int64_t num_bytes, Checksum* sum, cudaStream_t stream) {
  constexpr int64_t kPairsOfBlock = int64_t{kThreads} * kLoads;
  int64_t blocks = (num_bytes / 16 + kPairsOfBlock - 1) / kPairsOfBlock;
  blocks = blocks < 1 ? 1 : blocks > kMostBlocks ? kMostBlocks : blocks;
  checksum_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(data, num_bytes, sum);
  return cudaGetLastError();
}

}  // namespace tandem::device::cuda
