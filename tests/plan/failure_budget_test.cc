// Failures of a long run: quantiles of Poisson variables, Daly's interval by his own examples, and numbers by hand.
#include "plan/failure_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace tandem::plan {
namespace {

constexpr double kMinute = 60.0, kHour = 3600.0;

// The quantiles were computed with 60 decimal digits by adding e^-m m^k / k! until the sum reaches the probability.
TEST(PoissonQuantile, IsTheSmallestCountThatReachesTheProbability) {
  struct Row {
    double mean;
    int64_t half, of_100, of_1000;
  };
  for (const Row& row :
       {Row{0.0, 0, 0, 0}, Row{0.001, 0, 0, 0}, Row{0.1, 0, 1, 2}, Row{1.0, 1, 4, 5}, Row{3.5, 3, 8, 11},
        Row{10.0, 10, 18, 21}, Row{100.0, 100, 124, 132}, Row{233.2, 233, 269, 282}, Row{1000.0, 1000, 1074, 1099},
        Row{1e4, 10000, 10233, 10310}, Row{1e5, 100000, 100736, 100979}}) {
    EXPECT_EQ(poisson_quantile(row.mean, 0.5), row.half) << row.mean;
    EXPECT_EQ(poisson_quantile(row.mean, 0.99), row.of_100) << row.mean;
    EXPECT_EQ(poisson_quantile(row.mean, 0.999), row.of_1000) << row.mean;
  }
  // 3.0902 is the normal distribution's quantile.
  const double mean = 1e10;
  EXPECT_NEAR(static_cast<double>(poisson_quantile(mean, 0.999)), mean + 3.0902 * std::sqrt(mean), 1e-4 * 3.1e5);
}

// Daly's figures 3 to 5: a checkpoint takes 5 minutes, a restart 10, and he gives 117, 57 and 9.1 minutes for failures
// each 24 hours, 6 hours and 15 minutes.
TEST(BestInterval, IsDalysInHisExamples) {
  EXPECT_NEAR(best_interval(5 * kMinute, 24 * kHour) / kMinute, 117.0, 0.5);
  EXPECT_NEAR(best_interval(5 * kMinute, 6 * kHour) / kMinute, 57.0, 0.5);
  EXPECT_NEAR(best_interval(5 * kMinute, 15 * kMinute) / kMinute, 9.1, 0.05);
  EXPECT_EQ(best_interval(60.0, 30.0), 30.0);
  EXPECT_EQ(best_interval(100.0, 30.0), 30.0);
}

// The smallest time of the whole formula was found by halving: 116.69, 56.71 and 9.17 minutes, with 8.74, 18.06 and
// 80.03 % lost.
TEST(BestInterval, IsWhereTheLeastTimeIsLost) {
  const auto lost = [](double interval, double between) {
    return share_lost(interval, 5 * kMinute, 10 * kMinute, between);
  };
  EXPECT_NEAR(lost(best_interval(5 * kMinute, 24 * kHour), 24 * kHour), 0.0873944, 1e-6);
  EXPECT_NEAR(lost(best_interval(5 * kMinute, 6 * kHour), 6 * kHour), 0.1806186, 1e-6);
  EXPECT_NEAR(lost(best_interval(5 * kMinute, 15 * kMinute), 15 * kMinute), 0.8003322, 1e-4);
  for (const double between : {1.0 * kHour, 7.0 * kHour, 300.0 * kHour}) {
    for (const double cost : {0.5, 20.0, 600.0}) {
      const double best = best_interval(cost, between);
      const double least = share_lost(best, cost, 900.0, between);
      EXPECT_LT(least, share_lost(1.5 * best, cost, 900.0, between));
      EXPECT_LT(least, share_lost(best / 1.5, cost, 900.0, between));
    }
  }
}

// If failures are rare, the time lost is the checkpoint's share, half an interval a failure, and the restart.
TEST(ShareLost, IsTheSumOfItsPartsWhereFailuresAreRare) {
  const double between = 1e7, interval = 1000.0, cost = 10.0, restart = 500.0;
  EXPECT_NEAR(share_lost(interval, cost, restart, between),
              cost / (interval + cost) + ((interval + cost) / 2 + restart) / between, 1e-6);
  EXPECT_EQ(share_lost(1e9, 10.0, 500.0, 1000.0), 1.0);  // nothing is ever saved
}

// Llama 3: 16,384 GPUs on 2,048 hosts. Failures come at 16,384 / 50,700 = 0.32316 an hour, each 3.0945 hours = 11,140
// s. 30 days have 232.7. With 60 s a checkpoint, sqrt(2 * 60 * 11140) = 1156.2 s, times 1 + sqrt(60 / 22280) / 3 + (60
// / 22280) / 9 = 1.0176, less 60: 1116.6 s, which is 11 rollouts of 100 s.
TEST(FailureBudget, OfARunAsLargeAsLlama3ByHand) {
  FailureFacts facts = {.hosts = 2048,
                        .devices = 16384,
                        .training_devices = 16384,
                        .run_hours = 720.0,
                        .hours_between_failures = 50'700.0,
                        .checkpoint_seconds = 60.0,
                        .restart_seconds = 900.0,
                        .repair_hours = 24.0};
  FailureBudget budget = failure_budget(facts);
  EXPECT_NEAR(budget.failures, 232.7, 0.05);
  EXPECT_EQ(budget.interruptions, budget.failures);
  EXPECT_NEAR(budget.seconds_between, 11140.0, 1.0);
  EXPECT_NEAR(budget.interval_seconds, 1116.6, 0.5);
  EXPECT_FALSE(budget.save_interval);
  EXPECT_EQ(budget.max_restarts, poisson_quantile(232.67, 0.999));
  EXPECT_EQ(budget.spare_hosts, 15);  // of a mean of 7.756: P(14) = 0.987, P(15) = 0.994
  facts.step_seconds = 100.0;
  budget = failure_budget(facts);
  EXPECT_EQ(budget.save_interval, 11);
  EXPECT_EQ(budget.interval_seconds, 1100.0);
  // Saving 60 / 1160 = 5.2 %, half of 1,160 s and 900 s in each 11,140 s 13.3 %; Daly's formula compounds them.
  EXPECT_NEAR(budget.share_lost, 0.175, 0.005);
  facts.step_seconds = 5000.0;  // a rollout is longer than the best interval
  EXPECT_EQ(failure_budget(facts).save_interval, 1);
}

// Half of the devices only sample: as many fail, and half of the failures end the run.
TEST(FailureBudget, OfDevicesThatOnlySampleEndsNoRun) {
  FailureFacts facts = {.hosts = 64,
                        .devices = 512,
                        .training_devices = 512,
                        .run_hours = 720.0,
                        .hours_between_failures = 50'700.0,
                        .checkpoint_seconds = 60.0,
                        .restart_seconds = 900.0,
                        .repair_hours = 24.0};
  const FailureBudget together = failure_budget(facts);
  facts.training_devices = 256;
  const FailureBudget apart = failure_budget(facts);
  EXPECT_EQ(apart.failures, together.failures);
  EXPECT_EQ(apart.spare_hosts, together.spare_hosts);
  EXPECT_DOUBLE_EQ(apart.interruptions, together.interruptions / 2);
  EXPECT_LT(apart.max_restarts, together.max_restarts);
  EXPECT_LT(apart.share_lost, together.share_lost);
}

TEST(FailureBudget, SaysWhatToSet) {
  const FailureBudget budget = failure_budget({.hosts = 1,
                                               .devices = 8,
                                               .training_devices = 4,
                                               .run_hours = 48.0,
                                               .hours_between_failures = 1000.0,
                                               .checkpoint_seconds = 10.0,
                                               .restart_seconds = 60.0,
                                               .repair_hours = 0.0,
                                               .step_seconds = 1000.0});
  EXPECT_EQ(budget_text(budget, "as given"),
            "failures      0.38 expected in 2 days: 1 host of 8 devices, each of which fails once in 1000 hours\n"
            "              0.19 of them end the run; the others cost a device that only samples\n"
            "checkpoint    10 s (as given)\n"
            "interval      66.7 minutes of training between two checkpoints lose least: --save-interval 4\n"
            "lost          0.48 % of the time: saving, work done again, and 60 s for each restart\n"
            "restarts      3 to allow (--max-restarts); 99.9 % of such runs need no more\n"
            "spare hosts   0; 99 % of the time no more are missing, each for 0 s");
  EXPECT_EQ(budget_json(budget)["save_interval"], 4);
}

}  // namespace
}  // namespace tandem::plan
