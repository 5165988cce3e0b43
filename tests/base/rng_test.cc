// Philox gives the published answers and has the properties that sampling relies on.
#include "base/rng.h"

#include <gtest/gtest.h>

#include <set>

namespace tandem::base {
namespace {

using FourWords = std::array<uint32_t, 4>;

// The answers are from the known-answer file that comes with the paper's library.
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(philox(0, 0, 0), (FourWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}),
            (FourWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // The counter 243f6a88 85a308d3 13198a2e 03707344 and key a4093822 299f31d0 are the first digits of pi.
  EXPECT_EQ(philox(0x299f31d0'a4093822, 0x03707344'13198a2e, 0x85a308d3'243f6a88),
            (FourWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Uniform, StaysBelowOneAndHasTheRightMean) {
  constexpr int kDraws = 100000;
  double sum = 0, sum_of_squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = uniform(42, 7, static_cast<uint64_t>(i));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    sum_of_squares += u * u;
  }
  // The bounds are five standard errors of a uniform's mean (sqrt(1/12)) and second moment (sqrt(4/45)).
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * 0.2887 / 316.2);
  EXPECT_NEAR(sum_of_squares / kDraws, 1.0 / 3.0, 5 * 0.2981 / 316.2);
}

TEST(Uniform, DependsOnSeedSampleAndPosition) {
  std::set<double> draws;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (uint64_t sample = 0; sample < 10; ++sample) {
      for (uint64_t position = 0; position < 10; ++position) draws.insert(uniform(seed, sample, position));
    }
  }
  EXPECT_EQ(draws.size(), 1000U);
}

}  // namespace
}  // namespace tandem::base
