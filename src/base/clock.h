// Measures elapsed time for reports.
#pragma once

#include <chrono>

namespace tandem::base {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace tandem::base
