// A thread takes eight columns at a time.
#include "device/cuda/experts/places.h"

#include <algorithm>

#include "device/cuda/eights.cuh"
#include "device/cuda/launch.cuh"

namespace tandem::device::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int64_t kFewTokens = 32;
constexpr int kThreads = 256, kFewThreads = 64;

unsigned blocks_for(int64_t items, int64_t threads = kThreads) {
  return static_cast<unsigned>((items + threads - 1) / threads);
}

// Indices have 32 bits, as in rowwise.cu.
__global__ void gather_tokens_kernel(const bf16* x, const int32_t* sources, uint32_t eights, uint32_t num_chosen,
                                     uint32_t row_eights, bf16* out) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= eights) return;
  const uint32_t place = i / row_eights, column = i % row_eights;
  const uint32_t token = static_cast<uint32_t>(sources[place]) / num_chosen;
  store(out + static_cast<int64_t>(i) * kEight,
        load(x + (static_cast<int64_t>(token) * row_eights + column) * kEight));
}

// A thread has kAhead rows of places in flight, and before them its eight of the residual.
template <int kAhead, typename Row, typename Out>
__global__ void sum_of_experts_kernel(const Row* rows, const float* weights, const int32_t* places, int num_chosen,
                                      const Out* residual, bool rest_is_old, Out* out, uint32_t eights,
                                      uint32_t row_eights) {
  let_next_begin();
  if (!rest_is_old) wait_for_inputs();
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= eights) return wait_for_inputs();
  const uint32_t token = i / row_eights, column = i % row_eights;
  const int64_t first_of_token = static_cast<int64_t>(token) * num_chosen;
  float kept[kEight], sum[kEight] = {};
  if (residual != nullptr) load_eight(residual + static_cast<int64_t>(i) * kEight, kept);
  for (int first = 0; first < num_chosen; first += kAhead) {
    int32_t place[kAhead];
    float weight[kAhead], x[kAhead][kEight];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (first + a >= num_chosen) break;
      place[a] = places[first_of_token + first + a];
      weight[a] = weights == nullptr ? 1.0F : weights[first_of_token + first + a];
    }
    if (first == 0) wait_for_inputs();
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (first + a >= num_chosen) break;
      load_eight(rows + (static_cast<int64_t>(place[a]) * row_eights + column) * kEight, x[a]);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (first + a >= num_chosen) break;
#pragma unroll
      for (int j = 0; j < kEight; ++j) sum[j] = __fmaf_rn(weight[a], x[a][j], sum[j]);
    }
  }
  if (residual != nullptr) {
#pragma unroll
    for (int j = 0; j < kEight; ++j) sum[j] = kept[j] + sum[j];
  }
  store_eight(out + static_cast<int64_t>(i) * kEight, sum);
}

// A block has a place.
__global__ void weighted_silu_backward_kernel(const bf16* da, const bf16* gate_up, const int32_t* sources,
                                              const float* weights, int64_t F, bf16* dgate_up, bf16* weighted,
                                              float* dweights) {
  __shared__ float shared[kWarp];
  const int64_t place = blockIdx.x;
  const int32_t source = sources[place];
  const float weight = weights[source];
  float dot = 0.0F;
  for (int64_t i = threadIdx.x * kEight; i < F; i += static_cast<int64_t>(blockDim.x) * kEight) {
    const bf16* const gate_at = gate_up + place * 2 * F + i;
    float d[kEight], gate[kEight], up[kEight], scaled[kEight];
    load_eight(da + place * F + i, d);
    load_eight(gate_at, gate);
    load_eight(gate_at + F, up);
#pragma unroll
    for (int j = 0; j < kEight; ++j) {
      const float s = sigmoid(gate[j]), activated = s * gate[j] * up[j];
      dot += d[j] * activated;
      scaled[j] = activated * weight;
      d[j] *= weight;
      const float dgate = ((1.0F - s) * gate[j] + 1.0F) * s * up[j] * d[j];
      up[j] = d[j] * gate[j] * s;
      gate[j] = dgate;
    }
    store_eight(weighted + place * F + i, scaled);
    store_eight(dgate_up + place * 2 * F + i, gate);
    store_eight(dgate_up + place * 2 * F + F + i, up);
  }
  const float sum = block_sum(dot, shared);
  if (threadIdx.x == 0) dweights[source] = sum;
}

template <typename Row, typename Out>
cudaError_t sum_of_experts_in(const PlacedRows& placed, const void* residual, void* out, int64_t T, int64_t E,
                              cudaStream_t stream) {
  const int64_t eights = T * E / kEight;
  // With few tokens the time of a load decides, with many how many warps have room.
  const auto kernel = T <= kFewTokens ? sum_of_experts_kernel<8, Row, Out> : sum_of_experts_kernel<4, Row, Out>;
  const auto threads = T <= kFewTokens ? kFewThreads : kThreads;
  return launch_dependent(kernel, T, blocks_for(eights, threads), static_cast<unsigned>(threads), 0, stream,
                          static_cast<const Row*>(placed.rows), placed.weights, placed.places, placed.num_chosen,
                          static_cast<const Out*>(residual), placed.rest_is_old, static_cast<Out*>(out), eights,
                          E / kEight);
}

}  // namespace

cudaError_t gather_tokens(const bf16* x, const int32_t* sources, int64_t P, int64_t num_chosen, int64_t E, bf16* out,
                          cudaStream_t stream) {
  if (P == 0) return cudaSuccess;
  const int64_t eights = P * E / kEight;
  gather_tokens_kernel<<<blocks_for(eights), kThreads, 0, stream>>>(
      x, sources, static_cast<uint32_t>(eights), static_cast<uint32_t>(num_chosen), static_cast<uint32_t>(E / kEight), out);
  return cudaGetLastError();
}

cudaError_t sum_of_experts(const PlacedRows& placed, const void* residual, void* out, bool out_is_float32, int64_t T,
                           int64_t E, cudaStream_t stream) {
  if (T == 0) return cudaSuccess;
  if (placed.are_float32) {
    return out_is_float32 ? sum_of_experts_in<float, float>(placed, residual, out, T, E, stream)
                          : sum_of_experts_in<float, bf16>(placed, residual, out, T, E, stream);
  }
  return out_is_float32 ? sum_of_experts_in<bf16, float>(placed, residual, out, T, E, stream)
                        : sum_of_experts_in<bf16, bf16>(placed, residual, out, T, E, stream);
}

cudaError_t weighted_silu_backward(const bf16* da, const bf16* gate_up, const int32_t* sources, const float* weights,
                                   int64_t P, int64_t F, bf16* dgate_up, bf16* weighted, float* dweights,
                                   cudaStream_t stream) {
  if (P == 0) return cudaSuccess;
  // The width alone decides the threads of a row, and so the order of its sum.
  const int64_t eights = F / kEight;
  const auto threads = static_cast<unsigned>(std::min<int64_t>(1024, (eights + kWarp - 1) / kWarp * kWarp));
  weighted_silu_backward_kernel<<<static_cast<unsigned>(P), threads, 0, stream>>>(da, gate_up, sources, weights, F,
                                                                                  dgate_up, weighted, dweights);
  return cudaGetLastError();
}

}  // namespace tandem::device::cuda
