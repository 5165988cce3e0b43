// Seconds in which this process ran. One that was stopped (Ctrl-Z, a debugger, a frozen control group) and runs again
// does not count the time that it was stopped for, so it does not take others for silent that were stopped with it.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace tandem::base {

// Is to be asked more often than every kLongestStep seconds: what is beyond that between two questions is not counted.
class RunningTime {
 public:
  static constexpr double kLongestStep = 2.0;

  // Since this was made or reset().
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
