// Checks --use-trackio and --use-mlflow as they are typed, without a network: what a run leaves, and how it resumes.
#include <gtest/gtest.h>

#include <string>

#include "base/files.h"
#include "tests/cli/tiny_run.h"
#include "tests/text/tracker_packages.h"

namespace tandem::cli {
namespace {

class Trackers : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* const name : {"trackio", "mlflow"}) {
      if (!text::has_package(name)) GTEST_SKIP() << text::why_skipped(name);
    }
  }
};

TEST_F(Trackers, ARunKeepsItsIdsOverAResume) {
  const base::TemporaryDirectory folder;
  const std::string path = folder / "run";
  const auto tracked = [&](const std::string& num_rollout, const Arguments& more = {}) {
    Arguments arguments = with_flag(
        train_arguments(path, {"--use-trackio", "--trackio-project", "tests", "--trackio-dir", folder / "trackio",
                               "--use-mlflow", "--mlflow-tracking-uri", "sqlite:///" + (folder / "mlflow.db")}),
        "--num-rollout", num_rollout);
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  const Captured first = tracked("1");
  ASSERT_EQ(first.code, 0) << first.err;
  const std::string trackio_id = base::read_file(path + "/trackio_run_id"),
                    mlflow_id = base::read_file(path + "/mlflow_run_id");
  EXPECT_EQ(trackio_id.size(), 9U) << "eight letters and a line end";
  EXPECT_NE(trackio_id, mlflow_id);
  EXPECT_TRUE(base::file_exists(folder / "trackio/tests.db"));
  EXPECT_TRUE(base::file_exists(folder / "mlflow.db"));
  const Captured resumed = tracked("2", {"--load", path});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(base::read_file(path + "/trackio_run_id"), trackio_id);
  EXPECT_EQ(base::read_file(path + "/mlflow_run_id"), mlflow_id);
  const std::string metrics = base::read_file(path + "/metrics.jsonl");
  EXPECT_EQ(metrics.find("dropped_records"), std::string::npos);
}

TEST_F(Trackers, RefuseInOneLineBeforeARunBegins) {
  const base::TemporaryDirectory folder;
  const Captured nowhere = run(train_arguments(folder / "run", {"--use-mlflow"}));
  EXPECT_EQ(nowhere.code, 3) << nowhere.err;
  EXPECT_NE(nowhere.err.find("--use-mlflow: no place for its runs; give --mlflow-tracking-uri"), std::string::npos)
      << nowhere.err;
  const Captured seen = run(
      train_arguments(folder / "run", {"--use-mlflow", "--mlflow-tracking-uri", "http://me:canary-0123@127.0.0.1/x"}));
  EXPECT_EQ(seen.code, 2) << seen.err;
  EXPECT_NE(seen.err.find("--mlflow-tracking-uri: a password on a command line is seen"), std::string::npos)
      << seen.err;
  EXPECT_EQ((seen.out + seen.err).find("canary-0123"), std::string::npos) << "it is not repeated";
  EXPECT_FALSE(base::directory_exists(folder / "run"));
}

// A name for a tracker that is not used sends nothing, which is said.
TEST(IdleTrackerFlags, AreWarnedOf) {
  base::TemporaryDirectory folder;
  const Captured result =
      run(train_arguments(folder / "run", {"--dry-run", "--wandb-project", "p", "--wandb-mode", "offline",
                                           "--trackio-project", "q", "--mlflow-run-name", "r"}));
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* const says :
       {"--wandb-project p: does nothing without --use-wandb", "--wandb-mode offline: does nothing without --use-wandb",
        "--trackio-project q: does nothing without --use-trackio",
        "--mlflow-run-name r: does nothing without --use-mlflow"})
    EXPECT_NE(result.err.find(says), std::string::npos) << says << " in " << result.err;
}

}  // namespace
}  // namespace tandem::cli
