// Checks when a run in which everything goes wrong ends.
#include "run/patience.h"

#include <gtest/gtest.h>

namespace tandem::run {
namespace {

report::Metrics step(double skipped, double zero_gradient) {
  return {{"train/step_skipped", skipped}, {"train/zero_gradient", zero_gradient}};
}

TEST(CountSkipped, CountsStepsInARowAndStepsWithoutAGradientLeaveTheCountAsItIs) {
  EXPECT_EQ(count_skipped(0, step(1.0, 0.0)), 1);
  EXPECT_EQ(count_skipped(4, step(1.0, 0.0)), 5);
  EXPECT_EQ(count_skipped(4, step(0.0, 1.0)), 4);
  EXPECT_EQ(count_skipped(4, step(0.0, 0.0)), 0);
}

}  // namespace
}  // namespace tandem::run
