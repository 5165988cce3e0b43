// The arithmetic of attention's softmax, shared by all kernels of attention, so that a row has the same bits in each.
//
// The keys of a row are dealt to kAttentionParts parts by position: a step of keys (attention_step()) has one unit of
// adjacent keys for each part, in order. A part walks its units in ascending order and keeps a reference, the sum of
// weights and the weighted sum of values. The weight of a key is 2 to the power of its score minus the reference. The
// reference begins as kNoKey, and moves to the maximum of a unit only where that is more than kMostAbove larger: then
// both sums are multiplied by 2^(old - new) before the unit is added. At the end the sums of the parts are folded in
// their order. Scores and references are in powers of two.
//
// Values are summed on tensor cores with one float32 accumulator each, 16 keys at a time, by weights rounded to
// bfloat16. Weights are summed by four lanes, in the layout in which tensor cores give scores: of each eight keys of a
// unit lane i adds the pair 2i and 2i + 1, sum_of_pairs() adds the pairs of a unit, and sum_of_four() the lanes' sums when
// the part ends.
#pragma once

#include <cfloat>
#include <cstdint>

#include "device/cuda/attention/attention_work.h"

namespace tandem::device::cuda {

// The reference of a part that has seen no key. It is finite: differences and powers need no special case.
constexpr float kNoKey = -FLT_MAX;
// Weights are at most 2^8. So a reference hardly ever moves after the first unit, and a kernel may add many units
// before it looks at the sums again. A float32 sum of such weights is as precise as one of weights up to 1.
constexpr float kMostAbove = 8.0F;
constexpr double kLog2E = 1.4426950408889634074, kLn2 = 0.69314718055994530942;

__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A score that is not finite becomes NaN, and so does its row: the maximum would hide -infinity as if there were no
// such key. Other scores keep their bits.
__device__ __forceinline__ float finite_or_nan(float score) { return __fmaf_rn(score, 0.0F, score); }

// Returns the maximum over the four lanes that hold a row's scores.
__device__ __forceinline__ float maximum_of_four(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0U, x, 2));
  return fmaxf(x, __shfl_xor_sync(~0U, x, 1));
}

// Moves the reference to `most`, the largest score of a unit, if that is too large, and returns by what the sums before
// the unit must be multiplied: exactly 1 if the reference stays, or if the part has seen no key and its sums are 0.
__device__ __forceinline__ float move_reference(float& reference, float most) {
  const bool moves = most > reference + kMostAbove, has_keys = reference != kNoKey;
  const float factor = power_of_two(reference - most);
  reference = moves ? most : reference;
  return moves && has_keys ? factor : 1.0F;
}

__device__ __forceinline__ float weight_of(float score, float scale, float reference) {
  return power_of_two(__fmaf_rn(score, scale, -reference));
}

// Returns the sum over the four lanes that hold a row's scores.
__device__ __forceinline__ float sum_of_four(float x) {
  x += __shfl_xor_sync(~0U, x, 2);
  return x + __shfl_xor_sync(~0U, x, 1);
}

// Returns the sum of a unit's pairs, which it overwrites: the two halves of the pairs are added until one is left.
template <uint32_t kPairs>
__device__ __forceinline__ float sum_of_pairs(float (&pairs)[kPairs]) {
#pragma unroll
  for (uint32_t half = kPairs / 2; half > 0; half /= 2) {
#pragma unroll
    for (uint32_t i = 0; i < half; ++i) pairs[i] += pairs[i + half];
  }
  return pairs[0];
}

// The sums of the parts of a row that are folded already. fold() takes those of the next part and returns by what the
// folded values and the part's are multiplied before they are added. The first part is taken as it is.
struct Folded {
  float reference = kNoKey, sum = 0.0F;

  struct Factors {
    float folded, part;
  };
  __device__ __forceinline__ Factors fold(float part_reference, float part_sum) {
    const float most = fmaxf(reference, part_reference);
    const Factors factors = {power_of_two(reference - most), power_of_two(part_reference - most)};
    sum = sum * factors.folded + part_sum * factors.part;
    reference = most;
    return factors;
  }

  // Returns by what folded values are multiplied at the end: 0 for a row without keys.
  __device__ __forceinline__ float reciprocal() const {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(sum));
    return reference == kNoKey ? 0.0F : y;
  }
  // Returns the natural logarithm of the sum over keys: -infinity for a row without keys.
  __device__ __forceinline__ float log_sum() const {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(sum));
    return (y + reference) * static_cast<float>(kLn2);
  }
};

// Returns a weighted sum of values as it is written. A part without keys may have turned -0 into 0, so that 0 has no
// sign.
__device__ __forceinline__ float finished(float folded, float reciprocal) { return (folded + 0.0F) * reciprocal; }

}  // namespace tandem::device::cuda
