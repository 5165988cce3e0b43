// The numbers that codes of quantised weights stand for (device/quantisation.h), in kernels.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "device/cuda/tensor_cores.cuh"
#include "device/cuda/vectors.cuh"
#include "device/quantisation.h"

namespace tandem::device::cuda {

struct Nf4Values {
  float of[16];
};
constexpr Nf4Values copied_values() {
  Nf4Values values = {};
  for (int i = 0; i < 16; ++i) values.of[i] = kNf4Values[i];
  return values;
}
static __constant__ Nf4Values nf4_of_code = copied_values();

// Returns the pointer to the same part of an expert that lies so many bytes further on.
template <typename T>
__device__ inline const T* moved(const T* pointer, int64_t bytes) {
  return reinterpret_cast<const T*>(reinterpret_cast<const std::byte*>(pointer) + bytes);
}

// Returns the absolute maximum of a block of NF4, given its code and what its 256 blocks share.
__device__ inline float maximum_of_block(const float* table, uint8_t code, float scale) {
  return __fadd_rn(__fmul_rn(table[code], scale), table[kNf4TableSize]);
}

// Returns two numbers, rounded to bfloat16, as an instruction takes them.
__device__ inline uint32_t packed(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// A byte is two codes of NF4, so this table in shared memory has the two values of each byte, sixteen times: lanes that
// read at once share no bank.
class Nf4Pairs {
 public:
  static constexpr int kCopies = 16, kEntryBytes = kCopies * sizeof(float2), kBytes = 256 * kEntryBytes;

  // All threads of a block fill it together, a multiple of kWarp of them.
  static __device__ void fill(std::byte* table) {
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const float of_lane = nf4_of_code.of[thread % 16];
    auto* const pairs = reinterpret_cast<float2*>(table) + thread % kCopies;
#pragma unroll 1
    for (int first = 0; first < 256; first += threads / kCopies) {
      const int byte = first + thread / kCopies;
      const float2 pair = {__shfl_sync(kAllLanes, of_lane, byte / 16), __shfl_sync(kAllLanes, of_lane, byte % 16)};
      if (byte < 256) pairs[byte * kCopies] = pair;
    }
  }

  explicit __device__ Nf4Pairs(const std::byte* table)
      : of_lane_(shared_address(table) + threadIdx.x % kCopies * sizeof(float2)) {}
  // The table is filled before any code is there, so that the compiler may read it when it likes. It would make three
  // instructions of the address by itself.
  __device__ float2 of(uint32_t byte) const {
    float2 pair;
    uint32_t address;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(address) : "r"(byte), "n"(kEntryBytes), "r"(of_lane_));
    asm("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address));
    return pair;
  }

 private:
  uint32_t of_lane_;
};

// Returns weight `i` of four of int8, which are the bytes of a word. 2^23 + 128 + code is exact in float32.
template <int i>
__device__ inline float int8_weight(uint32_t codes, float maximum) {
  constexpr uint32_t kBeyond = 0x4B000000;  // 2^23
  const uint32_t bits = __byte_perm(codes ^ 0x80808080U, kBeyond, 0x7440 | i);
  const float code = __fadd_rn(__uint_as_float(bits), -8388736.0F);
  return __fmul_rn(__fmul_rn(code, maximum), kInt8Step);
}

}  // namespace tandem::device::cuda
