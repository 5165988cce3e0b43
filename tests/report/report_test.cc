// Metrics reach the disk and the terminal.
#include "report/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <regex>
#include <sstream>

#include "base/json.h"
#include "base/log.h"
#include "tandem/error.h"
#include "tests/base/faulty_disk.h"
#include "tests/base/temporary_directory.h"

namespace tandem::report {
namespace {

Report::Options files_in(const base::TemporaryDirectory& folder) {
  return {.metrics_file = folder / "metrics.jsonl", .log_file = folder / "log.txt"};
}

std::vector<base::Json> records(const std::string& path) {
  std::vector<base::Json> result;
  std::istringstream lines(base::read_file(path));
  for (std::string line; std::getline(lines, line);) result.push_back(base::parse_json(line, path));
  return result;
}

TEST(Report, WritesOneRecordPerCallWithItsAxis) {
  base::TemporaryDirectory folder;
  Report report(files_in(folder));
  report.log("rollout", 3, {{"rollout/raw_reward", 0.5}, {"perf/rollout_time", 1.25}});
  report.log("train", 7, {{"train/loss", std::nan("")}});
  report.sync();
  const std::vector<base::Json> lines = records(folder / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["rollout/step"], 3);
  EXPECT_EQ(lines[0]["rollout/raw_reward"], 0.5);
  EXPECT_TRUE(lines[0].contains("time_s"));
  EXPECT_EQ(lines[1]["train/step"], 7);
  EXPECT_EQ(lines[1]["train/loss"], "nan");  // JSON has no such number
}

TEST(Report, OneWhoseFilesCannotBeOpenedShowsNoLines) {
  base::TemporaryDirectory folder;
  base::write_file_durably(folder / "file", "");
  EXPECT_THROW(Report({.metrics_file = folder / "file/metrics.jsonl"}), EnvironmentError);
  testing::internal::CaptureStderr();
  base::log_warning("its terminal is gone");
  EXPECT_NE(testing::internal::GetCapturedStderr().find("its terminal is gone"), std::string::npos);
}

// --quiet shows results, warnings and errors; log.txt has everything.
TEST(Report, QuietShowsResultsAndWarningsAlone) {
  base::TemporaryDirectory folder;
  Report report(files_in(folder));
  base::set_log_level(base::LogLevel::kWarning);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  report.print("rollout 1/2  reward 0.5");
  report.progress("rollout", 1, 2, "prompts");
  report.print_result("done after 2 of 2 rollouts");
  base::log_info("data: 5 prompts left out");
  base::log_warning("no answer is right");
  const std::string out = testing::internal::GetCapturedStdout(), err = testing::internal::GetCapturedStderr();
  base::set_log_level(base::LogLevel::kInfo);
  EXPECT_EQ(out, "done after 2 of 2 rollouts\n");
  EXPECT_EQ(err.find("left out"), std::string::npos) << err;
  EXPECT_NE(err.find("warning: no answer is right"), std::string::npos) << err;
  report.sync();
  const std::string log = base::read_file(folder / "log.txt");
  for (const char* line : {"reward 0.5", "done after 2", "left out", "no answer is right"}) {
    EXPECT_NE(log.find(line), std::string::npos) << line << "\n" << log;
  }
}

TEST(Report, KeepsRecordsThatTheDiskRefusesWhereAskedTo) {
  base::TemporaryDirectory folder;
  base::FullAtTimes disk;
  const base::ReplacedFileCalls replaced(disk);
  testing::internal::CaptureStderr();
  {
    Report::Options options = files_in(folder);
    options.keep_unwritten = true;
    options.tensorboard_folder = folder / "tensorboard";
    Report report(options);
    report.log("train", 0, {});
    disk.is_full = true;
    report.log("train", 1, {});
    report.log("train", 2, {});
    EXPECT_THROW(report.sync(), EnvironmentError);
    disk.is_full = false;
    report.log("train", 3, {});
    report.sync();
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("kept in memory"), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  const std::vector<base::Json> lines = records(folder / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 4U);
  for (int step = 0; step < 4; ++step) EXPECT_EQ(lines[static_cast<size_t>(step)]["train/step"], step);
  EXPECT_FALSE(lines[1].contains("fault/unwritten_records"));
  EXPECT_EQ(lines[2]["fault/unwritten_records"], 1);
  EXPECT_EQ(lines[3]["fault/unwritten_records"], 2);
  const std::vector<std::string> events = base::list_directory(folder / "tensorboard");
  ASSERT_EQ(events.size(), 1U);
  EXPECT_NE(base::read_file(folder / "tensorboard" + "/" + events[0]).find("fault/unwritten_records"),
            std::string::npos);

  Report::Options options = files_in(folder);
  options.append = true;
  Report report(options);
  disk.is_full = true;
  EXPECT_THROW(report.log("train", 4, {}), EnvironmentError);
  disk.is_full = false;
}

// A replay needs every line of the schedule, so none is lost where the disk is full for a time.
TEST(Report, KeepsLinesOfTheScheduleThatTheDiskRefusesWhereAskedTo) {
  base::TemporaryDirectory folder;
  base::FullAtTimes disk;
  const base::ReplacedFileCalls replaced(disk);
  Report::Options options = files_in(folder);
  options.schedule_file = folder / "schedule.jsonl";
  options.keep_unwritten = true;
  testing::internal::CaptureStderr();
  {
    Report report(options);
    report.log_schedule("one");
    EXPECT_EQ(base::read_file(options.schedule_file), "one\n");
    disk.is_full = true;
    report.log_schedule("two");
    report.log_schedule("three");
    EXPECT_THROW(report.sync(), EnvironmentError) << "a checkpoint waits for them, and so does the end of the run";
    disk.is_full = false;
    report.log("rollout", 2, {});
    report.sync();
    EXPECT_EQ(base::read_file(options.schedule_file), "one\ntwo\nthree\n");
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("kept in memory"), std::string::npos) << said;
  EXPECT_EQ(records(folder / "metrics.jsonl").at(0)["fault/unwritten_records"], 2);

  options.keep_unwritten = false;
  Report report(options);
  EXPECT_EQ(base::read_file(options.schedule_file), "");
  disk.is_full = true;
  EXPECT_THROW(report.log_schedule("one"), EnvironmentError);
  disk.is_full = false;
}

TEST(Report, KeepsWhatTheTerminalShowed) {
  base::TemporaryDirectory folder;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  {
    Report report(files_in(folder));
    report.print("step 1/2");
    base::log_warning("odd");
    report.progress("rollout", 1, 2, "prompts");
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "step 1/2\n");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "warning: odd\n");
  const std::string log = base::read_file(folder / "log.txt");
  EXPECT_TRUE(std::regex_match(
      log, std::regex("(\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d)  step 1/2\n\\d{4}-[^\n]*  warning: odd\n")))
      << log;
  std::tm local = {};
  ASSERT_NE(::strptime(log.c_str(), "%Y-%m-%d %H:%M:%S", &local), nullptr);
  local.tm_isdst = -1;
  EXPECT_LE(std::abs(std::difftime(std::time(nullptr), std::mktime(&local))), 60.0) << "the machine's local time";
}

TEST(Report, LeavesTheLogAloneWhenItEnds) {
  base::TemporaryDirectory folder;
  { Report report(files_in(folder)); }
  testing::internal::CaptureStderr();
  base::log_warning("later");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "warning: later\n");
  EXPECT_EQ(base::read_file(folder / "log.txt"), "");
}

TEST(Report, WritesTensorBoardEvents) {
  base::TemporaryDirectory folder;
  {
    Report report({.tensorboard_folder = folder / "tensorboard"});
    report.log("train", 1, {{"train/loss", 0.5}});
    report.sync();
  }
  const std::vector<std::string> names = base::list_directory(folder / "tensorboard");
  ASSERT_EQ(names.size(), 1U);
  EXPECT_NE(base::read_file(folder / "tensorboard" + "/" + names[0]).find("train/loss"), std::string::npos);
}

TEST(Report, NumbersAreWrittenForPeople) {
  EXPECT_EQ(number_text(0.049412, 3), "0.0494");
  EXPECT_EQ(number_text(0.0, 3), "0");
  EXPECT_EQ(number_text(1.234e-7, 3), "1.23e-07");
  EXPECT_EQ(number_text(16050.4, 3), "16,050");
  EXPECT_EQ(number_text(-16050.4, 3), "-16,050");
  EXPECT_EQ(number_text(3e20, 3), "3e+20");
  EXPECT_EQ(number_text(std::nan(""), 3), "nan");
  EXPECT_EQ(number_text(-std::nan(""), 3), "nan") << "its sign says nothing";
  EXPECT_EQ(number_text(HUGE_VAL, 3), "inf");
}

TEST(Report, SummaryLeavesOutWhatIsAbsent) {
  EXPECT_EQ(summary({{"a", 0.25}, {"b", 1e-6}}, {{"x", "a"}, {"y", "none"}, {"z", "b"}}), "x 0.25  z 1e-06");
}

}  // namespace
}  // namespace tandem::report
