// Measures the seconds in which this process ran. The time for which it was stopped (Ctrl-Z, a debugger, a frozen
// control group) does not count, so processes that were stopped with it do not seem silent when it runs again.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace tandem::base {

// It must be asked more often than every kLongestStep seconds: time beyond that between two calls is not counted.
class RunningTime {
 public:
  static constexpr double kLongestStep = 2.0;

  // Returns the seconds since construction or reset().
  double seconds() {
    const Clock::time_point now = Clock::now();
    seconds_ += std::min(std::chrono::duration<double>(now - last_).count(), kLongestStep);
    last_ = now;
    return seconds_;
  }
  void reset() {
    last_ = Clock::now();
    seconds_ = 0.0;
  }

 private:
  Clock::time_point last_ = Clock::now();
  double seconds_ = 0.0;
};

}  // namespace tandem::base
