#include "base/poly1305.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace tandem::base {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are read as RFC 8439 writes them");
__extension__ using Wide = unsigned __int128;

constexpr size_t kBlockBytes = 16;
// Numbers below 2^130 in limbs of 44, 44 and 42 bits, whose products fit in 128 bits and leave room for their sums.
constexpr unsigned kLimbBits = 44, kTopBits = 42;
constexpr uint64_t kLimb = (uint64_t{1} << kLimbBits) - 1, kTop = (uint64_t{1} << kTopBits) - 1;
using Limbs = std::array<uint64_t, 3>;

uint64_t word_at(const char* bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// 16 bytes as a number, and 2^128 where `has_end` is 1.
Limbs limbs_of(const char* bytes, uint64_t has_end) {
  const uint64_t low = word_at(bytes), high = word_at(bytes + 8);
  return {low & kLimb, (low >> kLimbBits | high << (64 - kLimbBits)) & kLimb,
          high >> (2 * kLimbBits - 64) | has_end << (128 - 2 * kLimbBits)};
}

// `sum` = (sum + block) * r, modulo 2^130 - 5 but for what the limbs hold above it. 2^132 is 20 there.
void add_block(Limbs& sum, const Limbs& block, const Limbs& r) {
  const uint64_t a = sum[0] + block[0], b = sum[1] + block[1], c = sum[2] + block[2];
  const uint64_t r1 = r[1] * 20, r2 = r[2] * 20;
  const Wide low = Wide{a} * r[0] + Wide{b} * r2 + Wide{c} * r1;
  const Wide middle = Wide{a} * r[1] + Wide{b} * r[0] + Wide{c} * r2 + static_cast<uint64_t>(low >> kLimbBits);
  const Wide high = Wide{a} * r[2] + Wide{b} * r[1] + Wide{c} * r[0] + static_cast<uint64_t>(middle >> kLimbBits);
  const uint64_t first = (static_cast<uint64_t>(low) & kLimb) + static_cast<uint64_t>(high >> kTopBits) * 5;
  sum = {first & kLimb, (static_cast<uint64_t>(middle) & kLimb) + (first >> kLimbBits),
         static_cast<uint64_t>(high) & kTop};
}

void carry(Limbs& sum) {
  for (int round = 0; round < 2; ++round) {
    sum[1] += sum[0] >> kLimbBits;
    sum[0] &= kLimb;
    sum[2] += sum[1] >> kLimbBits;
    sum[1] &= kLimb;
    sum[0] += (sum[2] >> kTopBits) * 5;
    sum[2] &= kTop;
  }
}

// The remainder by 2^130 - 5, of limbs without carries.
Limbs reduced(const Limbs& sum) {
  Limbs less = {sum[0] + 5, sum[1], sum[2]};
  less[1] += less[0] >> kLimbBits;
  less[0] &= kLimb;
  less[2] += less[1] >> kLimbBits;
  less[1] &= kLimb;
  const uint64_t is_above = less[2] >> kTopBits;
  less[2] &= kTop;
  const uint64_t takes_less = 0 - is_above;
  Limbs result;
  for (size_t i = 0; i < result.size(); ++i) result[i] = (less[i] & takes_less) | (sum[i] & ~takes_less);
  return result;
}

std::string digits(uint64_t low, uint64_t high) {
  std::string result;
  for (const uint64_t word : {low, high}) {
    for (unsigned shift = 0; shift < 64; shift += 8) result += fmt::format("{:02x}", word >> shift & 0xFFU);
  }
  return result;
}

}  // namespace

std::string poly1305(std::string_view one_time_key, std::string_view bytes) {
  TANDEM_CHECK_EQ(one_time_key.size(), kOneTimeKeyBytes);
  std::array<char, kBlockBytes> r_bytes;
  std::memcpy(r_bytes.data(), one_time_key.data(), r_bytes.size());
  for (const size_t i : {3, 7, 11, 15}) r_bytes[i] = static_cast<char>(r_bytes[i] & 0x0F);
  for (const size_t i : {4, 8, 12}) r_bytes[i] = static_cast<char>(r_bytes[i] & 0xFC);
  const Limbs r = limbs_of(r_bytes.data(), 0);

  Limbs sum = {};
  const size_t whole = bytes.size() / kBlockBytes * kBlockBytes;
  for (size_t at = 0; at < whole; at += kBlockBytes) add_block(sum, limbs_of(bytes.data() + at, 1), r);
  if (whole < bytes.size()) {
    std::array<char, kBlockBytes> last = {};
    std::memcpy(last.data(), bytes.data() + whole, bytes.size() - whole);
    last[bytes.size() - whole] = 1;
    add_block(sum, limbs_of(last.data(), 0), r);
  }
  carry(sum);
  const Limbs h = reduced(sum);

  const char* const s = one_time_key.data() + kBlockBytes;
  const uint64_t low = h[0] | h[1] << kLimbBits;
  const uint64_t high = h[1] >> (64 - kLimbBits) | h[2] << (2 * kLimbBits - 64);
  const uint64_t tag_low = low + word_at(s);
  return digits(tag_low, high + word_at(s + 8) + (tag_low < low ? 1 : 0));
}

}  // namespace tandem::base
