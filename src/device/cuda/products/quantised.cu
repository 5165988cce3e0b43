// quantised.h has the contract. A warp makes 1,024 weights of a part that follow each other, and then those that lie a
// whole grid further on; a lane makes eight neighbours of each 256 of them, so that a warp writes whole lines.
#include "device/cuda/products/quantised.h"

#include <algorithm>

#include "device/cuda/products/code_numbers.cuh"
#include "device/cuda/vectors.cuh"

namespace tandem::device::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kThreads = 256, kEach = 8, kOnce = kWarp * kEach, kTimes = 4, kOfWarp = kTimes * kOnce;

// A part, and where its weights go.
struct Part {
  QuantisedBytes bytes;
  int64_t num_weights;
  bf16* out;
};
// The parts of a matrix, or of the first one of experts, whose offsets say which have places.
struct Parts {
  Part of[QuantisedWeight::kMostParts];
  const int32_t* offsets;
  int64_t bytes_of_expert, weights_of_expert;

  // Returns whether the block has a part to make: that of blockIdx.y, of expert blockIdx.z.
  __device__ bool has_work() const { return offsets == nullptr || offsets[blockIdx.z] < offsets[blockIdx.z + 1]; }
  __device__ Part part() const {
    Part own = of[blockIdx.y];
    const int64_t bytes = blockIdx.z * bytes_of_expert;
    own.bytes.scales = moved(own.bytes.scales, bytes);
    own.bytes.table = moved(own.bytes.table, bytes);
    own.bytes.maxima = moved(own.bytes.maxima, bytes);
    own.bytes.codes = moved(own.bytes.codes, bytes);
    own.out += blockIdx.z * weights_of_expert;
    return own;
  }
};

// Calls make(first) for each kOfWarp weights of the warp, by the first of them.
template <typename Make>
__device__ inline void for_warps(int64_t num_weights, const Make& make) {
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * (kThreads / kWarp) * kOfWarp;
  for (int64_t first = warp * kOfWarp; first < num_weights; first += stride) make(first);
}

// Writes eight weights, from w on, as far as the part has them.
__device__ inline void write(const float (&weights)[kEach], int64_t w, const Part& part) {
  if (w + kEach <= part.num_weights && reinterpret_cast<uintptr_t>(part.out) % sizeof(Vector) == 0)
    return store(part.out + w, pack(weights));
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (w + i < part.num_weights) part.out[w + i] = __float2bfloat16_rn(weights[i]);
  }
}

// Every lane has the sixteen values in a bank of its own, and makes the maximum of one of the warp's blocks. Codes end
// at a multiple of 64 bytes, so whole words are read.
__global__ __launch_bounds__(kThreads) void dequantise_nf4(const __grid_constant__ Parts parts) {
  constexpr int kBlocks = kOfWarp / static_cast<int>(kNf4Block), kLanes = kWarp / (kOnce / static_cast<int>(kNf4Block));
  __shared__ float of_code[16][kWarp];
  __shared__ float table[kNf4TableSize + 1];
  if (!parts.has_work()) return;
  const Part part = parts.part();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int code = static_cast<int>(threadIdx.x) / kWarp; code < 16; code += kThreads / kWarp)
    of_code[code][lane] = nf4_of_code.of[code];
  for (int i = static_cast<int>(threadIdx.x); i <= kNf4TableSize; i += kThreads) table[i] = part.bytes.table[i];
  __syncthreads();
  const int64_t last_block = (part.num_weights - 1) / kNf4Block, last_word = (part.num_weights - 1) / kEach;
  for_warps(part.num_weights, [&](int64_t first) {
    const int64_t block = min(first / kNf4Block + lane % kBlocks, last_block);
    uint32_t codes[kTimes];
#pragma unroll
    for (int t = 0; t < kTimes; ++t) {
      const int64_t word = min(first / kEach + t * kWarp + lane, last_word);
      codes[t] = reinterpret_cast<const uint32_t*>(part.bytes.codes)[word];
    }
    const float own = maximum_of_block(table, part.bytes.maxima[block], part.bytes.scales[block / kNf4Nested]);
#pragma unroll
    for (int t = 0; t < kTimes; ++t) {
      const float maximum = __shfl_sync(kAllLanes, own, t * (kWarp / kLanes) + lane / kLanes);
      float weights[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int shift = i / 2 * 8 + (i % 2 == 0 ? 4 : 0);  // the first of two lies in the high half of a byte
        weights[i] = __fmul_rn(of_code[codes[t] >> shift & 15][lane], maximum);
      }
      write(weights, first + t * kOnce + lane * kEach, part);
    }
  });
}

__global__ __launch_bounds__(kThreads) void dequantise_int8(const __grid_constant__ Parts parts) {
  if (!parts.has_work()) return;
  const Part part = parts.part();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t columns = part.bytes.num_columns, last_row = (part.num_weights - 1) / columns;
  const int64_t last_word = (part.num_weights - 1) / kEach;
  const bool has_whole_rows = columns % kEach == 0;
  for_warps(part.num_weights, [&](int64_t first) {
#pragma unroll
    for (int t = 0; t < kTimes; ++t) {
      const int64_t w = first + t * kOnce + lane * kEach;
      const uint2 codes = reinterpret_cast<const uint2*>(part.bytes.codes)[min(w / kEach, last_word)];
      const float maximum = part.bytes.scales[min(w / columns, last_row)];
      const auto maximum_of = [&](int64_t i) {
        return has_whole_rows ? maximum : part.bytes.scales[min((w + i) / columns, last_row)];
      };
      const float weights[kEach] = {int8_weight<0>(codes.x, maximum_of(0)), int8_weight<1>(codes.x, maximum_of(1)),
                                    int8_weight<2>(codes.x, maximum_of(2)), int8_weight<3>(codes.x, maximum_of(3)),
                                    int8_weight<0>(codes.y, maximum_of(4)), int8_weight<1>(codes.y, maximum_of(5)),
                                    int8_weight<2>(codes.y, maximum_of(6)), int8_weight<3>(codes.y, maximum_of(7))};
      write(weights, w, part);
    }
  });
}

// Runs the kernel for the parts of `num_experts` matrices, by at most so many blocks a part.
cudaError_t launch(const QuantisedWeight& w, Parts parts, int64_t num_experts, int64_t most_blocks, bf16* out,
                   cudaStream_t stream) {
  int64_t most = 0;
  for (int i = 0; i < w.num_parts; ++i) {
    const int64_t num_weights = w.rows[i] * w.parts[i].num_columns;
    parts.of[i] = {.bytes = w.parts[i], .num_weights = num_weights, .out = out + parts.weights_of_expert};
    parts.weights_of_expert += num_weights;
    most = std::max(most, num_weights);
  }
  constexpr int64_t kOfBlock = int64_t{kThreads} / kWarp * kOfWarp;
  const int64_t blocks = std::min((most + kOfBlock - 1) / kOfBlock, most_blocks);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(w.num_parts),
                  static_cast<unsigned>(num_experts));
  const auto kernel = w.parts[0].quantisation == Quantisation::kInt8 ? dequantise_int8 : dequantise_nf4;
  kernel<<<grid, kThreads, 0, stream>>>(parts);
  return cudaGetLastError();
}

}  // namespace

cudaError_t dequantise(const QuantisedWeight& w, bf16* out, cudaStream_t stream) {
  return launch(w, {}, /*num_experts=*/1, /*most_blocks=*/1024, out, stream);
}

// A token has a few experts, whose blocks alone have work: as many as fill the GPU then. A block makes its tables
// first, so it should have much to do.
cudaError_t dequantise(const QuantisedExperts& w, const int32_t* offsets, bf16* out, cudaStream_t stream) {
  return launch(w.first, {.of = {}, .offsets = offsets, .bytes_of_expert = w.bytes_of_expert}, w.num_experts,
                /*most_blocks=*/64, out, stream);
}

}  // namespace tandem::device::cuda
