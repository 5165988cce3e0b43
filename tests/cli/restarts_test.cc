// A run that is started again resumes from a checkpoint of its own, and never from one that lay there before it.
#include "cli/restarts.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "base/files.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"

namespace tandem::cli {
namespace {

using Words = std::vector<std::string>;

class Restarts : public ::testing::Test {
 protected:
  Words restarted_words(const std::string& saved_before) const {
    return restarted(words_, save_, checkpoints_, saved_before);
  }

  // Writes what a run leaves when it has saved step 2.
  void save_checkpoint() const {
    base::make_directories(save_ + "/checkpoints/step_000002");
    base::write_file_durably(latest_, "step_000002\n");
  }

  base::TemporaryDirectory folder_;
  const std::string save_ = folder_ / "run", latest_ = save_ + "/checkpoints/latest";
  config::CheckpointOptions checkpoints_;
  const Words words_ = {"--lr", "0.1"};
};

TEST_F(Restarts, StateOfAFolderChangesWhenARunSavesACheckpoint) {
  EXPECT_EQ(saved_state(save_), kNothingSaved);
  base::make_directories(save_);
  EXPECT_EQ(saved_state(save_), kNothingSaved);
  base::write_file_durably(save_ + "/config.toml", "");
  EXPECT_EQ(saved_state(save_), kNoCheckpoint);
  save_checkpoint();
  const std::string first = saved_state(save_);
  EXPECT_TRUE(first.starts_with("checkpoint of ")) << first;
  std::filesystem::last_write_time(latest_, std::filesystem::last_write_time(latest_) + std::chrono::seconds(1));
  EXPECT_NE(saved_state(save_), first);
}

// A folder that cannot be looked at is not taken for an empty one.
TEST_F(Restarts, AFolderThatCannotBeReadIsRefused) {
  std::filesystem::create_symlink("loop", folder_ / "loop");
  EXPECT_THROW(saved_state(folder_ / "loop/run"), UserError);
}

TEST_F(Restarts, ResumesFromItsOwnCheckpoint) {
  EXPECT_EQ(restarted_words(kNothingSaved), (Words{"--lr", "0.1", "--load", save_, "--allow-fresh-start"}))
      << "there is no checkpoint yet";
  base::make_directories(save_ + "/checkpoints/step_000002");
  EXPECT_EQ(restarted_words(kNothingSaved), (Words{"--lr", "0.1", "--load", save_}));
}

TEST_F(Restarts, ResumesFromTheLastCheckpointAndNotFromANamedStep) {
  checkpoints_.load = folder_ / "other";
  checkpoints_.ckpt_step = 1;
  base::make_directories(save_);
  EXPECT_EQ(restarted_words(kNothingSaved), (Words{"--lr", "0.1", "--overwrite"}))
      << "what is there is the beginning of this run";
  save_checkpoint();
  EXPECT_EQ(restarted_words(kNothingSaved), (Words{"--lr", "0.1", "--load", save_, "--ckpt-step", "-1"}));
}

// With --overwrite it would also replace what another process has saved there meanwhile.
TEST_F(Restarts, InPlaceReplacesNothing) {
  checkpoints_.load = save_ + "/";
  checkpoints_.allow_fresh_start = true;
  EXPECT_EQ(restarted_words(kNothingSaved), words_);
  base::make_directories(save_ + "/checkpoints");
  EXPECT_EQ(restarted_words(kNothingSaved), words_);
}

// The run that --overwrite replaces may still be there after a failure.
TEST_F(Restarts, DoesNotResumeFromTheRunThatItReplaces) {
  save_checkpoint();
  const std::string saved_before = saved_state(save_);
  EXPECT_EQ(restarted_words(saved_before), words_);
  std::filesystem::remove(latest_);
  EXPECT_EQ(restarted_words(saved_before), words_) << "it began to replace it";
  save_checkpoint();
  std::filesystem::last_write_time(latest_, std::filesystem::last_write_time(latest_) + std::chrono::seconds(1));
  EXPECT_EQ(restarted_words(saved_before), (Words{"--lr", "0.1", "--load", save_})) << "it has saved one of its own";
}

// A folder that held something else at first, but no checkpoint, is replaced by the flags that began the run.
TEST_F(Restarts, BeginsAgainWhereAFolderHeldSomethingElse) {
  base::make_directories(save_);
  base::write_file_durably(save_ + "/config.toml", "");
  const std::string saved_before = saved_state(save_);
  EXPECT_EQ(saved_before, kNoCheckpoint);
  EXPECT_EQ(restarted_words(saved_before), words_);
  save_checkpoint();
  EXPECT_EQ(restarted_words(saved_before), (Words{"--lr", "0.1", "--load", save_}));
}

}  // namespace
}  // namespace tandem::cli
