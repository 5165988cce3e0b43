// Checks `tandem plan --hosts` as it is typed: what it says, its JSON, and how it refuses.
#include <gtest/gtest.h>

#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

Arguments plan_of(const Arguments& more) {
  Arguments arguments = {"plan", "--hf-checkpoint", kModel};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(FailureBudgetOfARun, StandsBelowThePlan) {
  const Captured result = run(plan_of({"--hosts", "64", "--actor-num-nodes", "64", "--actor-num-gpus-per-node", "8",
                                       "--step-seconds", "200", "--checkpoint-seconds", "20"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("\n\nfailures      7.3 expected in 30 days: 64 hosts of 8 devices, each of which fails "
                            "once in 50700 hours\n"),
            std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find("checkpoint    20 s (as given)\ninterval      63.3 minutes of training between two "
                            "checkpoints lose least: --save-interval 19\n"),
            std::string::npos)
      << result.out;
  EXPECT_EQ(run(plan_of({})).out.find("failures"), std::string::npos);
}

// The golden model has 199,296 parameters: a checkpoint has 12 bytes of each, and 256 KiB.
TEST(FailureBudgetOfARun, KnowsTheBytesOfACheckpoint) {
  const auto budget = [](const Arguments& more) {
    Arguments arguments =
        plan_of({"--json", "--hosts", "2", "--actor-num-nodes", "2", "--save-bytes-per-second", "1MB"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Captured result = run(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return base::parse_json(result.out, "plan")["failures"];
  };
  const base::Json whole = budget({});
  EXPECT_NEAR(whole["checkpoint_seconds"].get<double>(), (199'296.0 * 12 + 262'144) / 1e6, 1e-6);
  EXPECT_FALSE(whole.contains("save_interval"));
  EXPECT_EQ(whole["devices"], 2);
  // A reference that is renewed is in the checkpoint too: 4 bytes a parameter.
  const base::Json with_reference =
      budget({"--dtype", "float32", "--use-kl-loss", "--kl-loss-coef", "0.1", "--ref-update-interval", "5"});
  EXPECT_NEAR(with_reference["checkpoint_seconds"].get<double>(), (199'296.0 * 16 + 262'144) / 1e6, 1e-6);
}

TEST(FailureBudgetOfARun, CountsDevicesThatOnlySample) {
  const Captured result = run(plan_of({"--json", "--hosts", "4", "--actor-num-nodes", "1", "--actor-num-gpus-per-node",
                                       "8", "--rollout-num-gpus", "24"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const base::Json budget = base::parse_json(result.out, "plan")["failures"];
  EXPECT_EQ(budget["devices"], 32);
  EXPECT_DOUBLE_EQ(budget["failures"].get<double>(), 4 * budget["interruptions"].get<double>());
}

TEST(FailureBudgetOfARun, TakesTheEndsOfEveryRange) {
  const Arguments most = {"--json", "--hosts", "64", "--actor-num-nodes", "64", "--actor-num-gpus-per-node", "8"};
  for (const Arguments& ends :
       {Arguments{"--run-days", "3650", "--hours-between-failures", "1", "--repair-hours", "10000", "--restart-minutes",
                  "100000", "--checkpoint-seconds", "1e7", "--step-seconds", "1e7"},
        Arguments{"--run-days", "1e-9", "--hours-between-failures", "1e9", "--repair-hours", "0", "--restart-minutes",
                  "0", "--checkpoint-seconds", "1e-9", "--step-seconds", "0.001"},
        Arguments{"--hours-between-failures", "1e9", "--checkpoint-seconds", "1e7", "--step-seconds", "0.001"}}) {
    Arguments arguments = plan_of(most);
    arguments.insert(arguments.end(), ends.begin(), ends.end());
    const Captured result = run(arguments);
    ASSERT_EQ(result.code, 0) << result.err;
    const base::Json budget = base::parse_json(result.out, "plan")["failures"];
    EXPECT_GE(budget["share_lost"].get<double>(), 0.0);
    EXPECT_LE(budget["share_lost"].get<double>(), 1.0);
    EXPECT_GE(budget["save_interval"].get<int64_t>(), 1);
    EXPECT_LE(budget["spare_hosts"].get<int64_t>(), 64);
  }
}

TEST(FailureBudgetOfARun, MistakesAreOneLineEach) {
  const auto refuses = [](const Arguments& more, const std::string& says) {
    expect_one_line_failure(run(plan_of(more)), 2, says);
  };
  refuses({"--hosts", "0"}, "--hosts");
  refuses({"--hosts", "two"}, "--hosts");
  refuses({"--hosts", "3", "--actor-num-nodes", "2", "--actor-num-gpus-per-node", "8"},
          "--hosts 3: the run has 16 processes, one for each device, which is no whole number a host");
  refuses({"--hosts", "64"}, "--hosts 64: the run has 1 process");
  for (const char* flag : {"--run-days", "--checkpoint-seconds", "--step-seconds"}) {
    refuses({"--hosts", "1", flag, "0"}, flag);
    refuses({"--hosts", "1", flag, "nan"}, flag);
    refuses({"--hosts", "1", flag, "1e99"}, flag);
  }
  refuses({"--hosts", "1", "--hours-between-failures", "0.5"}, "--hours-between-failures");
  refuses({"--hosts", "1", "--restart-minutes", "-1"}, "--restart-minutes");
  refuses({"--hosts", "1", "--repair-hours", "-1"}, "--repair-hours");
  refuses({"--hosts", "1", "--save-bytes-per-second", "fast"}, "--save-bytes-per-second");
}

}  // namespace
}  // namespace tandem::cli
