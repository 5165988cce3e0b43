// Checks that something is quick on a machine that may be busy with other tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "base/clock.h"

namespace tandem::base {

// Whether one of up to five calls takes less than `bound_s` seconds. What always waits longer fails in each of them,
// while a pause of a busy machine costs another call.
inline testing::AssertionResult takes_less_than(double bound_s, const std::function<void()>& call) {
  double quickest_s = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 5; ++i) {
    const Clock::time_point begin = Clock::now();
    call();
    quickest_s = std::min(quickest_s, seconds_since(begin));
    if (quickest_s < bound_s) return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "the quickest of five calls took " << quickest_s << " s, not less than "
                                     << bound_s;
}

}  // namespace tandem::base
