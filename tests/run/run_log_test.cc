// Checks what a training run writes next to its checkpoints.
#include "run/run_log.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "base/log.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"

namespace tandem::run {
namespace {

class RunLogTest : public testing::Test {
 protected:
  void SetUp() override { directory_.create(); }

  const base::TemporaryDirectory folder_;
  checkpoint::RunDirectory directory_{folder_ / "run", checkpoint::RunFolder::kNew, 0};
};

TEST_F(RunLogTest, BeginsWithTheConfigurationAndTheFoldersOfARun) {
  { const RunLog log(directory_, {.config_text = "lr = 1", .has_rollouts = false}); }
  EXPECT_EQ(base::read_file(directory_.config_file()), "lr = 1");
  EXPECT_FALSE(base::directory_exists(directory_.samples_folder()));
  EXPECT_FALSE(base::file_exists(directory_.memory_file()));
  { const RunLog log(directory_, {.config_text = "lr = 2"}); }
  EXPECT_EQ(base::read_file(directory_.config_file()), "lr = 2");
  EXPECT_TRUE(base::directory_exists(directory_.samples_folder()));
  EXPECT_TRUE(base::file_exists(directory_.memory_file()));
}

TEST_F(RunLogTest, KeepsWhatIsAddedForOneRecord) {
  RunLog log(directory_, {});
  log.add({{"a", 1.0}, {"b", 2.0}});
  log.add({{"b", 3.0}});
  EXPECT_EQ(log.take(), (report::Metrics{{"a", 1.0}, {"b", 3.0}}));
  EXPECT_TRUE(log.take().empty());
}

TEST_F(RunLogTest, ADiskThatRefusesEndsTheRunOrIsCounted) {
  const auto refuse = [] { throw EnvironmentError("the disk is full"); };
  RunLog stops(directory_, {});
  EXPECT_THROW(stops.write_or_count("a file", "fault/unwritten_samples", refuse), EnvironmentError);
  EXPECT_TRUE(stops.take().empty());
}

TEST_F(RunLogTest, ADiskThatRefusesIsCountedWhereTheRunContinues) {
  RunLog log(directory_, {.continues_after_save_error = true});
  base::set_log_level(base::LogLevel::kError);
  for (int i = 0; i < 2; ++i) {
    log.write_or_count("a file", "fault/unwritten_samples", [] { throw EnvironmentError("the disk is full"); });
  }
  base::write_file_durably(folder_ / "no_folder", "");
  log.write_samples(folder_ / "no_folder/s.jsonl", {}, {}, report::SampleDetail::kFull);
  base::set_log_level(base::LogLevel::kInfo);
  EXPECT_EQ(log.take(), (report::Metrics{{"fault/unwritten_samples", 3.0}}));
  EXPECT_THROW(log.write_or_count("a file", "x", [] { throw UserError("not the disk's fault"); }), UserError);
}

TEST_F(RunLogTest, EndsWithItsLastLine) {
  RunLog log(directory_, {});
  EXPECT_EQ(log.finish(/*signal=*/0, /*is_saved=*/true, "done after 2 rollouts"), 0);
  EXPECT_NE(base::read_file(directory_.log_file()).find("done after 2 rollouts\n"), std::string::npos);
}

}  // namespace
}  // namespace tandem::run
