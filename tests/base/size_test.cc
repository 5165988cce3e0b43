// Sizes whose arithmetic leaves 64 bits are refused, all others are exact.
#include "base/size.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/rng.h"

namespace tandem::base {
namespace {

constexpr uint64_t kSeed = 5;
constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = std::numeric_limits<int64_t>::min();

// Draws numbers of every magnitude and both signs, often at or next to a power of two.
int64_t draw(uint64_t which) {
  const auto bits = static_cast<int>(uniform(kSeed, which, 0) * 63.0);
  const auto fraction = static_cast<uint64_t>(uniform(kSeed, which, 1) * 0x1.0p53) << 11 >> (63 - bits);
  const double kind = uniform(kSeed, which, 2);
  const uint64_t power = uint64_t{1} << bits;
  const uint64_t magnitude = kind < 0.2 ? power : kind < 0.3 ? power - 1 : kind < 0.4 ? power + 1 : fraction;
  const auto value = static_cast<int64_t>(magnitude & static_cast<uint64_t>(kMost));
  return uniform(kSeed, which, 3) < 0.5 ? -value : value;
}

template <typename Operation>
void expect_exact_or_refused(Operation operation, int64_t a, int64_t b) {
  const __int128 want = operation(static_cast<__int128>(a), static_cast<__int128>(b));
  if (want > kMost || want < kLeast) {
    EXPECT_THROW(operation(Size(a), Size(b)), SizeOverflow) << a << ' ' << b << ", seed " << kSeed;
    EXPECT_THROW(operation(Size(a), b), SizeOverflow) << a << ' ' << b << ", seed " << kSeed;
    EXPECT_THROW(operation(a, Size(b)), SizeOverflow) << a << ' ' << b << ", seed " << kSeed;
  } else {
    EXPECT_EQ(int64_t{operation(Size(a), Size(b))}, static_cast<int64_t>(want)) << a << ' ' << b;
    EXPECT_EQ(int64_t{operation(Size(a), b)}, static_cast<int64_t>(want)) << a << ' ' << b;
    EXPECT_EQ(int64_t{operation(a, Size(b))}, static_cast<int64_t>(want)) << a << ' ' << b;
  }
}

TEST(Size, IsExactOrRefuses) {
  for (uint64_t i = 0; i < 20'000; ++i) {
    const int64_t a = draw(2 * i), b = draw(2 * i + 1);
    expect_exact_or_refused([](auto x, auto y) { return x + y; }, a, b);
    expect_exact_or_refused([](auto x, auto y) { return x - y; }, a, b);
    expect_exact_or_refused([](auto x, auto y) { return x * y; }, a, b);
    if (b != 0) expect_exact_or_refused([](auto x, auto y) { return x / y; }, a, b);
  }
  EXPECT_THROW(Size(kLeast) / -1, SizeOverflow);
  EXPECT_THROW(Size(1) / 0, SizeOverflow);
  EXPECT_THROW(Size(1) % 0, SizeOverflow);
  EXPECT_THROW(Size(uint64_t{1} << 63), SizeOverflow);
}

TEST(Size, AddsUpInPlace) {
  Size sum = kMost - 1;
  sum += 1;
  EXPECT_EQ(sum, kMost);
  EXPECT_THROW(++sum, SizeOverflow);
  EXPECT_EQ(sum, kMost) << "as it was";
  EXPECT_THROW(sum *= 2, SizeOverflow);
  sum -= kMost;
  EXPECT_EQ(sum, 0);
}

TEST(Size, OfADoubleIsItsWholePart) {
  EXPECT_EQ(Size::from(2.9), 2);
  EXPECT_EQ(Size::from(0x1.0p62), int64_t{1} << 62);
  EXPECT_THROW(Size::from(0x1.0p63), SizeOverflow);
  EXPECT_THROW(Size::from(-1e300), SizeOverflow);
  EXPECT_THROW(Size::from(std::numeric_limits<double>::quiet_NaN()), SizeOverflow);
}

}  // namespace
}  // namespace tandem::base
