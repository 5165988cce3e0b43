// Computes the weight of a token in a draw, exp((logit - max) / temperature), with the same bits on every device. CPU
// and GPU compile this same text. No torch.
//
// Everything is plain float32 arithmetic, rounded operation by operation: no compiler may fuse a product with a sum
// (-ffp-contract=off for g++, -fmad=false for nvcc), or two devices would draw different tokens.
//
// Weights are multiples of one quantum, so that every sum of up to V of them is exact in float64 in any order: float32
// numbers from 2^-12 to 1 are multiples of 2^-35, smaller weights are rounded to such multiples, and 2^18 of them stay
// within float64's 53 bits. A larger vocabulary doubles the quantum as often as is needed.
#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace tandem::device {

// Below this exponent, exp() is taken as 0: its power of two would come close to the denormals.
inline constexpr float kMinExponent = -86.0F;

// Computes exp(x) for kMinExponent <= x <= 0, with a relative error below 2e-7. The C library's does not have the same
// bits everywhere; this one does, and loops over it vectorise.
TANDEM_HOST_DEVICE inline float exp_in_range(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;    // 355/512: products with small integers are exact
  constexpr float kLn2Low = -2.12194440e-4F;  // ln 2 - kLn2High
  constexpr float kRoundShift = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const float shifted = x * kLog2E + kRoundShift;
  const float n = shifted - kRoundShift;
#ifdef __CUDA_ARCH__
  const float reduced = __fmaf_rn(-n, kLn2High, x);  // the product is exact: fused or not, the bits are the same
#else
  const float reduced = x - n * kLn2High;
#endif
  const float r = reduced - n * kLn2Low;  // |r| <= ln(2) / 2
  float p = 1.0F / 5040.0F;
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  // The integer n stands in the low bits of `shifted`; its other bits leave at the top.
#ifdef __CUDA_ARCH__
  return __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
#else
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(shifted) << 23));
#endif
}

// Returns the k of the rounding: the smallest k >= 0 with vocab_size <= 2^(18 + k).
TANDEM_HOST_DEVICE constexpr int weight_rounding_bits(int64_t vocab_size) {
  int k = 0;
  while (vocab_size > (int64_t{1} << (18 + k))) ++k;
  return k;
}

// Weights below this value, 2^(k - 12), are rounded. Weights are multiples of its 2^-23th part, which is 2^(k - 35).
TANDEM_HOST_DEVICE constexpr float weight_rounding(int64_t vocab_size) {
  return 0x1p-12F * static_cast<float>(int64_t{1} << weight_rounding_bits(vocab_size));
}

// Returns (logit - max) / temperature, the logarithm of a weight, with two roundings. inverse_temperature = float(1 /
// temperature).
TANDEM_HOST_DEVICE inline float weight_exponent(float logit, float max_logit, float inverse_temperature) {
  return (logit - max_logit) * inverse_temperature;
}

// Returns the weight of a token, from its exponent <= 0 and weight_rounding(vocab_size): a multiple of the quantum in
// [0, 1]. The weight of an exponent below kMinExponent is rounded to 0 in any case, so that it needs no test of its
// own.
TANDEM_HOST_DEVICE inline float weight(float exponent, float rounding) {
  const float w = exp_in_range(exponent < kMinExponent ? kMinExponent : exponent);
  return w < rounding ? (w + rounding) - rounding : w;
}

}  // namespace tandem::device
