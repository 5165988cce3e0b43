// Tests of the bell that wakes a thread which polls.
#include "base/bell.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "base/clock.h"

namespace tandem::base {
namespace {

// Returns for how many seconds a thread that waits up to `wait_s` for these bells has waited.
double waited(const Bell& a, const Bell& b, double wait_s) {
  const Clock::time_point begin = Clock::now();
  wait_readable(std::array{a.descriptor(), b.descriptor()}, wait_s);
  return seconds_since(begin);
}

TEST(Bell, WakesWhoeverPollsUntilItIsSilenced) {
  Bell bell, other;
  EXPECT_GE(waited(bell, other, 0.05), 0.05) << "nobody has rung";
  bell.ring();
  bell.ring();
  EXPECT_LT(waited(other, bell, 30.0), 10.0) << "it was rung before the wait began";
  EXPECT_LT(waited(other, bell, 30.0), 10.0) << "nobody has silenced it";
  bell.silence();
  EXPECT_GE(waited(bell, other, 0.05), 0.05) << "silenced once, however often it was rung";
  bell.silence();  // returns at once
  std::jthread rings([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    other.ring();
  });
  EXPECT_LT(waited(bell, other, 30.0), 10.0) << "it is rung during the wait";
}

}  // namespace
}  // namespace tandem::base
