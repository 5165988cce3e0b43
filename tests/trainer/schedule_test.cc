// Tests of learning rates at hand-computed steps, and of the flags that are refused.
#include "trainer/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tandem/error.h"

namespace tandem::trainer {
namespace {

TEST(Schedule, HoldsAConstantRate) {
  const Schedule schedule = {.max_lr = 3e-5};
  for (int64_t step : {0, 1, 1000}) EXPECT_EQ(learning_rate(schedule, step), 3e-5);
}

TEST(Schedule, WarmsUpFromZeroToTheMaximum) {
  const Schedule schedule = {.max_lr = 1.0, .warmup_steps = 4};
  EXPECT_EQ(learning_rate(schedule, 0), 0.0);
  EXPECT_EQ(learning_rate(schedule, 1), 0.25);
  EXPECT_EQ(learning_rate(schedule, 4), 1.0);
  EXPECT_EQ(learning_rate(schedule, 5), 1.0);
}

TEST(Schedule, DecaysLinearlyAfterWarmUpAndHoldsTheMinimum) {
  const Schedule schedule = {
      .decay_style = "linear", .max_lr = 1.0, .min_lr = 0.2, .warmup_steps = 2, .decay_steps = 10};
  EXPECT_EQ(learning_rate(schedule, 1), 0.5);
  EXPECT_EQ(learning_rate(schedule, 2), 1.0);
  EXPECT_NEAR(learning_rate(schedule, 6), 0.6, 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 10), 0.2, 1e-15);
  EXPECT_EQ(learning_rate(schedule, 11), 0.2);
}

// The numbers are those of Megatron's OptimizerParamScheduler for lr_wsd_decay_style.
TEST(Schedule, OfWsdStaysAtTheHighestUntilItsEnd) {
  Schedule schedule = {.decay_style = "WSD", .max_lr = 1.0, .min_lr = 0.2, .warmup_steps = 2, .decay_steps = 10};
  schedule.wsd_decay_steps = 4;
  const auto rates = [&](const std::string& style) {
    schedule.wsd_decay_style = style;
    for (const int64_t step : {2, 5, 6}) EXPECT_EQ(learning_rate(schedule, step), 1.0) << style << " " << step;
    EXPECT_EQ(learning_rate(schedule, 1), 0.5) << style;
    EXPECT_EQ(learning_rate(schedule, 11), 0.2) << style;
    return std::vector<double>{learning_rate(schedule, 7), learning_rate(schedule, 8), learning_rate(schedule, 10)};
  };
  const std::map<std::string, std::vector<double>> expected = {
      {"exponential", {0.8 * (2.0 * std::pow(0.5, 0.25) - 1.0) + 0.2, 0.8 * (std::sqrt(2.0) - 1.0) + 0.2, 0.2}},
      {"linear", {0.8, 0.6, 0.2}},
      {"cosine", {0.2 + 0.4 * (1.0 + std::sqrt(0.5)), 0.6, 0.2}},
      {"minus_sqrt", {0.6, 1.0 - 0.8 * std::sqrt(0.5), 0.2}}};
  ASSERT_EQ(expected.size(), std::size(kWsdDecayStyles));
  for (const auto& [style, theirs] : expected) {
    const std::vector<double> ours = rates(style);
    for (size_t i = 0; i < theirs.size(); ++i) EXPECT_NEAR(ours[i], theirs[i], 1e-12) << style << " " << i;
  }
}

TEST(Schedule, DecaysAsHalfACosine) {
  const Schedule schedule = {.decay_style = "cosine", .max_lr = 2.0, .min_lr = 1.0, .decay_steps = 8};
  EXPECT_EQ(learning_rate(schedule, 0), 2.0);
  EXPECT_NEAR(learning_rate(schedule, 2), 1.5 + 0.5 * std::sqrt(0.5), 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 4), 1.5, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 8), 1.0, 1e-12);
  EXPECT_EQ(learning_rate(schedule, 9), 1.0);
}

}  // namespace
}  // namespace tandem::trainer
