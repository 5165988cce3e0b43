// Looks up codes of four bits with AVX2, for the instruction sets that have it.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tandem::device::cpu {

// Writes values[code] for 64 codes, the first of two in the high half of a byte. It is a function of its own for each
// instruction set S, whose file is compiled with other flags.
template <class S>
void look_up_64_by_shuffles(const uint16_t* values, const uint8_t* codes, uint16_t* out) {
  // A shuffle looks up bytes, so the low and the high bytes of the values are looked up by themselves.
  const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values));
  const auto bytes_of = [](__m256i words) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi16(words, words), 0xD8);
    return _mm256_broadcastsi128_si256(_mm256_castsi256_si128(packed));
  };
  const __m256i low = bytes_of(_mm256_and_si256(all, _mm256_set1_epi16(0xFF)));
  const __m256i high = bytes_of(_mm256_srli_epi16(all, 8));
  const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  const __m256i half = _mm256_set1_epi8(15);
  const __m256i even = _mm256_and_si256(_mm256_srli_epi16(packed, 4), half), odd = _mm256_and_si256(packed, half);
  // Within each 128-bit half of a register, codes come in order: 0.. and 32.., then 16.. and 48...
  for (int first = 0; first < 32; first += 16) {
    const __m256i index = first == 0 ? _mm256_unpacklo_epi8(even, odd) : _mm256_unpackhi_epi8(even, odd);
    const __m256i l = _mm256_shuffle_epi8(low, index), h = _mm256_shuffle_epi8(high, index);
    const __m256i a = _mm256_unpacklo_epi8(l, h), b = _mm256_unpackhi_epi8(l, h);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + first), _mm256_permute2x128_si256(a, b, 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32 + first), _mm256_permute2x128_si256(a, b, 0x31));
  }
}

}  // namespace tandem::device::cpu
