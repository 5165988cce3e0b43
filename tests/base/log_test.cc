// Log lines are whole, filtered by level and counted.
#include "base/log.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tandem::base {
namespace {

class Log : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_terminal([this](const std::string& line) { terminal_.push_back(line); });
  }
  void TearDown() override {
    set_log_terminal({});
    set_log_sink({});
    set_log_level(LogLevel::kInfo);
  }
  std::vector<std::string> terminal_;
};

TEST_F(Log, SaysItsLevelAndHidesWhatIsBelow) {
  log_info("step {}", 2);
  log_warning("slow by {} ms", 3);
  log_error("lost {}", 4);
  EXPECT_EQ(terminal_, (std::vector<std::string>{"step 2", "warning: slow by 3 ms", "error: lost 4"}));
  set_log_level(LogLevel::kWarning);
  log_info("hidden");
  EXPECT_EQ(terminal_.size(), 3U);
}

TEST_F(Log, CountsWarningsEvenWhenHidden) {
  const int64_t before = num_warnings();
  set_log_level(LogLevel::kError);
  log_warning("a");
  log_error("b");
  EXPECT_EQ(num_warnings(), before + 1);
  EXPECT_EQ(terminal_.size(), 1U);
}

TEST_F(Log, KeepsOneMessageOnOneLine) {
  log_info("{}", "first\nsecond");
  EXPECT_EQ(terminal_.back(), "first\\nsecond");
}

// Texts of reward functions and models once set titles, wrote clipboards and cleared screens, both at once and whenever
// somebody looked into log.txt.
TEST_F(Log, GivesATerminalNothingToObey) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, const std::string& line) { lines.push_back(line); });
  log_info("{}", "a\x1b]0;title\x07\x1b[2J\r\x7f b");
  EXPECT_EQ(terminal_.back(), "a\\u001b]0;title\\u0007\\u001b[2J\\u000d\\u007f b");
  EXPECT_EQ(lines, terminal_);
}

TEST_F(Log, GivesTheSinkTheSameLines) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, const std::string& line) {
    EXPECT_EQ(level, LogLevel::kWarning);
    lines.push_back(line);
  });
  log_warning("x");
  EXPECT_EQ(lines, terminal_);
}

TEST_F(Log, KeepsLinesOfThreadsApart) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 100; ++i) log_info("thread {}", t);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(terminal_.size(), 400U);
}

TEST(LogStderr, WritesALine) {
  ::testing::internal::CaptureStderr();
  log_info("hello");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "hello\n");
}

}  // namespace
}  // namespace tandem::base
