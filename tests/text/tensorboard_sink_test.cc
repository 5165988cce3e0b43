// Scalars arrive in an event file that TensorBoard reads, whatever happens to the process that writes it.
#include "text/metric_sink.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <string>
#include <thread>

#include "base/json.h"
#include "base/log.h"
#include "tandem/error.h"
#include "tests/worker/process_facts.h"

namespace tandem::text {
namespace {

class Sink : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Returns what TensorBoard itself finds in the directory.
  base::Json read_back() const {
    const std::string command =
        worker::default_worker_config().python + " tests/text/read_events.py " + directory_ + " 2>/dev/null";
    FILE* pipe = ::popen(command.c_str(), "r");
    std::string text;
    for (int c = 0; (c = std::fgetc(pipe)) != EOF;) text.push_back(static_cast<char>(c));
    ::pclose(pipe);
    return base::Json::parse(text);
  }

  std::string directory_ = testing::TempDir() + "tensorboard_sink_" + std::to_string(::getpid());
};

TEST_F(Sink, WritesWhatTensorBoardReads) {
  const int descriptors = worker::num_descriptors();
  {
    MetricSink sink(tensorboard_target(worker::default_worker_config(), directory_));
    sink.write(0, {{"train/loss", 0.5}, {"rollout/raw_reward", -1.0}});
    sink.write(7, {{"train/loss", std::numeric_limits<double>::quiet_NaN()}, {"train/grad_norm", HUGE_VAL}});
  }
  EXPECT_EQ(worker::num_descriptors(), descriptors);
  EXPECT_EQ(worker::num_children(), 0);
  const auto expected = base::Json::parse(R"([[0, "rollout/raw_reward", "-1.0"], [0, "train/loss", "0.5"],
                                              [7, "train/grad_norm", "inf"], [7, "train/loss", "nan"]])");
  EXPECT_EQ(read_back(), expected);
}

TEST_F(Sink, ReplacesADeadChildWithOneWarning) {
  const int64_t warnings = base::num_warnings();
  {
    MetricSink sink(tensorboard_target(worker::default_worker_config(), directory_));
    for (int64_t step = 0; step < 3; ++step) {
      sink.write(step, {{"x", 1.0}});
      sink.flush(60);
      ASSERT_EQ(::kill(static_cast<pid_t>(sink.process_id()), SIGKILL), 0);
    }
    sink.write(3, {{"x", 1.0}});
    sink.flush(60);
    EXPECT_EQ(sink.dropped(), 0);
    EXPECT_EQ(sink.restarts(), 3);
  }
  EXPECT_EQ(base::num_warnings(), warnings + 1);
  EXPECT_EQ(read_back().size(), 4U);
}

TEST_F(Sink, DoesNotBlockWhenItsChildHangs) {
  MetricSink sink(tensorboard_target(worker::default_worker_config(), directory_));
  ASSERT_EQ(::kill(static_cast<pid_t>(sink.process_id()), SIGSTOP), 0);
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t step = 0; step < 3000; ++step) sink.write(step, {{"x", 1.0}});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_GT(sink.dropped(), 1900);  // the queue holds 1024
}

TEST_F(Sink, SaysWhenItsDirectoryCannotBeWritten) {
  try {
    MetricSink sink(tensorboard_target(worker::default_worker_config(), "/dev/null/events"));
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("/dev/null/events"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tandem::text
