// Byte counts with units: each unit has its value, and other texts are refused.
#include "base/byte_count.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem::base {
namespace {

TEST(ByteCount, UnitsAreThoseOfTheHelp) {
  const int64_t kib = 1024, gib = kib * kib * kib;
  EXPECT_EQ(parse_byte_count("0"), 0);
  EXPECT_EQ(parse_byte_count("1073741824"), gib);
  for (const char* text : {"1G", "1GiB", "1gib", "1g", "1 GiB", "1024M", "1048576K", "1073741824B"}) {
    EXPECT_EQ(parse_byte_count(text), gib) << text;
  }
  EXPECT_EQ(parse_byte_count("1.5G"), gib + gib / 2);
  EXPECT_EQ(parse_byte_count("2TiB"), 2 * kib * gib);
  EXPECT_EQ(parse_byte_count("1KB"), 1000);
  EXPECT_EQ(parse_byte_count("80GB"), 80'000'000'000);
  EXPECT_EQ(parse_byte_count("9223372036854775807"), INT64_MAX);
}

TEST(ByteCount, IsAWholeNumberOfBytesOrNothing) {
  for (const char* text : {"", "G", "GiB", "-1", "-1G", "1GG", "1Gi", "1P", "1.5", "0.0001K", "1e9", "1 G iB", " 1G",
                           "inf", "nan", "9223372036854775808", "8388608T", "1,5G", "0x10"}) {
    EXPECT_EQ(parse_byte_count(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace tandem::base
