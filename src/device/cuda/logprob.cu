// logprob.h has the contract. The forward is a cluster of blocks for each row, the backward is element-wise.
#include "device/cuda/logprob.h"

#include <algorithm>

#include "device/cuda/row_mass.cuh"

namespace tandem::device::cuda {
namespace {

template <int kCluster, bool kAligned, bool kEntropy>
__global__ void __launch_bounds__(kRowThreads, 2)
    logprob_rows(const float* logits, const int32_t* targets, int vocab_size, float inverse_temperature,
                 MassScale scale, float* logp, float* entropy, float* lse) {
  if (!can_run<kCluster>()) return;
  using Part = RowPart<kCluster, kAligned>;
  __shared__ RowShared shared;
  const unsigned index = blockIdx.x / kCluster;
  const float* row = logits + static_cast<int64_t>(index) * vocab_size;
  Part part(row, vocab_size, shared);
  const auto extremes = part.extremes();
  const float max_logit = extremes.largest;
  const int target = targets[index];
  const bool writes = part.rank() == 0 && threadIdx.x == 0;
  if (!extremes.finite()) {
    if (writes) {
      logp[index] = target < 0 ? 0.0F : NAN;
      lse[index] = NAN;
      if (kEntropy) entropy[index] = NAN;
    }
    part.sync();
    return;
  }
  uint64_t mass = 0;
  int64_t weighted_exponent = 0;
  part.for_each([&](float x, int) {
    const float exponent = fmaxf(weight_exponent(x, max_logit, inverse_temperature), kMinExponent);
    const float w = exp_in_range(exponent);
    mass += static_cast<uint64_t>(rounded_units(w, scale.shift));
    if (kEntropy) weighted_exponent += rounded_units(w * exponent, scale.entropy_shift);
  });
  mass = warp_sum(mass);
  if (kEntropy) weighted_exponent = warp_sum(weighted_exponent);
  if (part.lane() == 0) {
    shared.all[part.warp()] = mass;
    shared.weighted_exponents[part.warp()] = weighted_exponent;
  }
  part.sync();
  if (part.rank() == 0 && part.warp() == 0) {
    const uint64_t total_mass = part.sum_of(shared.all).total;
    const int64_t weighted = kEntropy ? static_cast<int64_t>(part.sum_of(shared.weighted_exponents).total) : 0;
    if (part.lane() == 0) {
      const double total = static_cast<double>(total_mass) * scale.quantum, log_total = log(total);
      const float largest = max_logit * inverse_temperature;
      lse[index] = static_cast<float>(static_cast<double>(largest) + log_total);
      logp[index] = target < 0 ? 0.0F
                               : logprob_of(weight_exponent(row[target], max_logit, inverse_temperature), total_mass,
                                            scale.quantum);
      // The entropy is -sum p log p, where log p = exponent - log(total) and p = weight / total.
      if (kEntropy)
        entropy[index] = static_cast<float>(log_total - static_cast<double>(weighted) * scale.entropy_quantum / total);
    }
  }
  part.sync();  // a block stays while others read its shared memory
}

template <int kCluster, bool kAligned>
cudaError_t launch(const float* logits, const int32_t* targets, int64_t num_rows, int64_t vocab_size,
                   float inverse_temperature, float* logp, float* entropy, float* lse, cudaStream_t stream) {
  const auto kernel =
      entropy != nullptr ? logprob_rows<kCluster, kAligned, true> : logprob_rows<kCluster, kAligned, false>;
  return launch_rows<kCluster>(kernel, num_rows, stream, logits, targets, static_cast<int>(vocab_size),
                               inverse_temperature, mass_scale(vocab_size), logp, entropy, lse);
}

// A thread takes eight neighbours: 32 bytes of float32, 16 of bfloat16.
constexpr int kGradientsPerThread = 8;
constexpr int kGradientThreads = 256;

struct Slope {  // the gradient's constants of a row
  float inverse_temperature, lse, dlogp, dentropy, entropy;
  int target;
  // Below -1e4 the probability is 0 anyway, and its product with -infinity would be NaN.
  __device__ float operator()(float logit, int id) const {
    const float log_probability = logit * inverse_temperature - lse;
    const float slope = dlogp + dentropy * (fmaxf(log_probability, -1e4F) + entropy);
    const float along = expf(log_probability) * slope;
    return ((id == target ? dlogp : 0.0F) - along) * inverse_temperature;
  }
};

template <bool kAligned, typename Gradient>
__global__ void __launch_bounds__(kGradientThreads)
    logprob_gradient(const float* logits, const int32_t* targets, const float* lse, const float* dlogp,
                     const float* dentropy, const float* entropy, int64_t num_rows, int vocab_size,
                     float inverse_temperature, Gradient* dlogits) {
  const int id = static_cast<int>((blockIdx.x * kGradientThreads + threadIdx.x) * kGradientsPerThread);
  if (id >= vocab_size) return;
  for (int64_t r = blockIdx.y; r < num_rows; r += gridDim.y) {
    const int target = targets[r];
    const Slope slope{inverse_temperature,
                      lse[r],
                      target < 0 ? 0.0F : dlogp[r],
                      dentropy != nullptr ? dentropy[r] : 0.0F,
                      dentropy != nullptr ? entropy[r] : 0.0F,
                      target};
    const float* in = logits + r * vocab_size + id;
    Gradient* out = dlogits + r * vocab_size + id;
    if constexpr (kAligned) {
      const float4 a = __ldcs(reinterpret_cast<const float4*>(in)), b = __ldcs(reinterpret_cast<const float4*>(in) + 1);
      const float g[kGradientsPerThread] = {slope(a.x, id),     slope(a.y, id + 1), slope(a.z, id + 2),
                                            slope(a.w, id + 3), slope(b.x, id + 4), slope(b.y, id + 5),
                                            slope(b.z, id + 6), slope(b.w, id + 7)};
      if constexpr (sizeof(Gradient) == 4) {
        __stcs(reinterpret_cast<float4*>(out), make_float4(g[0], g[1], g[2], g[3]));
        __stcs(reinterpret_cast<float4*>(out) + 1, make_float4(g[4], g[5], g[6], g[7]));
      } else {
        uint4 packed;
        auto* pairs = reinterpret_cast<__nv_bfloat162*>(&packed);
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(g[2 * i], g[2 * i + 1]);
        *reinterpret_cast<uint4*>(out) = packed;
      }
    } else {
      for (int i = 0; i < kGradientsPerThread && id + i < vocab_size; ++i)
        out[i] = static_cast<Gradient>(slope(in[i], id + i));
    }
  }
}

}  // namespace

// Launches with so many blocks for each row, as in sample.cu: 1, 2, 4 or 8.
static cudaError_t logprob_with_blocks(int blocks_per_row, const float* logits, const int32_t* targets,
                                       int64_t num_rows, int64_t vocab_size, float inverse_temperature, float* logp,
                                       float* entropy, float* lse, cudaStream_t stream) {
  if (vocab_size < 1 || vocab_size > (int64_t{1} << 30)) return cudaErrorInvalidValue;
  if (num_rows == 0) return cudaSuccess;
  const auto go = [&](auto launch_as) {
    return launch_as(logits, targets, num_rows, vocab_size, inverse_temperature, logp, entropy, lse, stream);
  };
  if (vocab_size % 4 != 0) return blocks_per_row == 1 ? go(launch<1, false>) : cudaErrorInvalidValue;
  switch (blocks_per_row) {
    case 1: return go(launch<1, true>);
    case 2: return go(launch<2, true>);
    case 4: return go(launch<4, true>);
    case 8: return go(launch<8, true>);
    default: return cudaErrorInvalidValue;
  }
}

cudaError_t logprob(const float* logits, const int32_t* targets, int64_t num_rows, int64_t vocab_size,
                    float inverse_temperature, float* logp, float* entropy, float* lse, cudaStream_t stream) {
  static const bool clusters = has_clusters(logprob_rows<8, true, true>);
  const bool cut = clusters && vocab_size % 4 == 0 && vocab_size > 4096;
  const int blocks = !cut || num_rows > 128 ? 1 : num_rows > 32 ? 2 : 8;
  return logprob_with_blocks(blocks, logits, targets, num_rows, vocab_size, inverse_temperature, logp, entropy, lse,
                             stream);
}

template <typename Gradient>
cudaError_t logprob_backward(const float* logits, const int32_t* targets, const float* lse, const float* dlogp,
                             const float* dentropy, const float* entropy, int64_t num_rows, int64_t vocab_size,
                             float inverse_temperature, Gradient* dlogits, cudaStream_t stream) {
  if (vocab_size < 1 || vocab_size > (int64_t{1} << 30)) return cudaErrorInvalidValue;
  if (num_rows == 0) return cudaSuccess;
  constexpr int64_t kBlock = int64_t{kGradientThreads} * kGradientsPerThread, kMaxGridRows = 65535;
  const dim3 grid(static_cast<unsigned>((vocab_size + kBlock - 1) / kBlock),
                  static_cast<unsigned>(std::min(num_rows, kMaxGridRows)));
  const auto kernel =
      vocab_size % kGradientsPerThread == 0 ? logprob_gradient<true, Gradient> : logprob_gradient<false, Gradient>;
  kernel<<<grid, kGradientThreads, 0, stream>>>(logits, targets, lse, dlogp, dentropy, entropy, num_rows,
                                                static_cast<int>(vocab_size), inverse_temperature, dlogits);
  return cudaGetLastError();
}
template cudaError_t logprob_backward(const float*, const int32_t*, const float*, const float*, const float*,
                                      const float*, int64_t, int64_t, float, float*, cudaStream_t);
template cudaError_t logprob_backward(const float*, const int32_t*, const float*, const float*, const float*,
                                      const float*, int64_t, int64_t, float, __nv_bfloat16*, cudaStream_t);

}  // namespace tandem::device::cuda
