// Metrics on disk and on the terminal.
#include "run/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "base/json.h"
#include "base/log.h"
#include "tests/base/temporary_directory.h"

namespace tandem::run {
namespace {

std::vector<base::Json> records(const std::string& path) {
  std::vector<base::Json> result;
  std::istringstream lines(base::read_file(path));
  for (std::string line; std::getline(lines, line);) result.push_back(base::parse_json(line, path));
  return result;
}

TEST(Report, WritesOneRecordPerCallWithItsAxis) {
  base::TemporaryDirectory folder;
  RunDirectory run(folder / "run", RunFolder::kNew, 0);
  run.create();
  Report report(&run, false);
  report.log("rollout", 3, {{"rollout/raw_reward", 0.5}, {"perf/rollout_time", 1.25}});
  report.log("train", 7, {{"train/loss", std::nan("")}});
  report.sync();
  const std::vector<base::Json> lines = records(run.metrics_file());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["rollout/step"], 3);
  EXPECT_EQ(lines[0]["rollout/raw_reward"], 0.5);
  EXPECT_TRUE(lines[0].contains("time_s"));
  EXPECT_EQ(lines[1]["train/step"], 7);
  EXPECT_EQ(lines[1]["train/loss"], "nan");  // JSON has no such number
}

TEST(Report, KeepsWhatTheTerminalShowed) {
  base::TemporaryDirectory folder;
  RunDirectory run(folder / "run", RunFolder::kNew, 0);
  run.create();
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  {
    Report report(&run, false);
    report.line("step 1/2");
    base::log_warning("odd");
    report.progress("rollout", 1, 2, "prompts");
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "step 1/2\n");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "warning: odd\n");
  EXPECT_EQ(base::read_file(run.log_file()), "step 1/2\nwarning: odd\n");
}

TEST(Report, LeavesTheLogAloneWhenItEnds) {
  base::TemporaryDirectory folder;
  RunDirectory run(folder / "run", RunFolder::kNew, 0);
  run.create();
  { Report report(&run, false); }
  testing::internal::CaptureStderr();
  base::log_warning("later");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "warning: later\n");
  EXPECT_EQ(base::read_file(run.log_file()), "");
}

TEST(Report, WritesTensorBoardEvents) {
  base::TemporaryDirectory folder;
  RunDirectory run(folder / "run", RunFolder::kNew, 0);
  run.create();
  {
    Report report(&run, true);
    report.log("train", 1, {{"train/loss", 0.5}});
    report.sync();
  }
  const std::vector<std::string> names = base::list_directory(run.tensorboard_folder());
  ASSERT_EQ(names.size(), 1U);
  EXPECT_NE(base::read_file(run.tensorboard_folder() + "/" + names[0]).find("train/loss"), std::string::npos);
}

TEST(Report, SummaryLeavesOutWhatIsAbsent) {
  EXPECT_EQ(summary({{"a", 0.25}, {"b", 1e-6}}, {{"x", "a"}, {"y", "none"}, {"z", "b"}}), "x 0.25  z 1e-06");
}

}  // namespace
}  // namespace tandem::run
