// A run directory is never overwritten by accident.
#include "checkpoint/run_directory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "base/files.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"

namespace tandem::checkpoint {
namespace {

namespace fs = std::filesystem;

TEST(RunDirectory, IsMadeOnlyWhenAsked) {
  base::TemporaryDirectory folder;
  RunDirectory run(folder / "a/b", RunFolder::kNew, 0);
  EXPECT_FALSE(base::file_exists(run.config_file()));
  run.create();
  EXPECT_TRUE(base::directory_exists(run.path() + "/hf"));
  EXPECT_FALSE(base::directory_exists(run.samples_folder())) << "made by runs that sample";
}

TEST(RunDirectory, EarlierRunIsReplacedOnlyWithOverwrite) {
  base::TemporaryDirectory folder;
  const std::string notes = folder / "run/notes.txt";
  {
    RunDirectory first(folder / "run", RunFolder::kNew, 0);
    first.create();
    base::write_file_durably(first.config_file(), "lr = 1.0\n");
    base::write_file_durably(notes, "mine");
    base::make_directories(first.samples_folder());
    base::write_file_durably(first.samples_folder() + "/rollout_000000.jsonl", "{}\n");
    RunDirectory meanwhile(folder / "run", RunFolder::kOverwrite, 0);
    EXPECT_THROW(meanwhile.create(), EnvironmentError) << "the first one is still writing, and will end";
  }
  EXPECT_THROW(RunDirectory(folder / "run", RunFolder::kNew, 0), UserError);
  RunDirectory second(folder / "run", RunFolder::kOverwrite, 0);
  EXPECT_TRUE(base::file_exists(second.config_file()));  // nothing happens before create()
  second.create();
  EXPECT_FALSE(base::file_exists(second.config_file()));
  EXPECT_FALSE(base::directory_exists(second.samples_folder()));
  EXPECT_TRUE(base::file_exists(notes));  // the user's own files stay
}

// The folder that the link led to was removed, as scratch folders are.
TEST(RunDirectory, ALinkThatLeadsNowhereIsReplaced) {
  for (const RunFolder how : {RunFolder::kOverwrite, RunFolder::kFresh}) {
    base::TemporaryDirectory folder;
    base::make_directories(folder / "run");
    base::write_file_durably(folder / "run/config.toml", "lr = 1.0\n");
    fs::create_symlink(folder / "gone", folder / "run/checkpoints");
    RunDirectory(folder / "run", how, 0).create();
    EXPECT_TRUE(fs::is_directory(fs::symlink_status(folder / "run/checkpoints")));
  }
}

// A run looked at an empty folder, loaded its model for minutes, and then removed what another one had trained there.
TEST(RunDirectory, WhatAnotherRunHasMadeMeanwhileIsKept) {
  for (const RunFolder how : {RunFolder::kNew, RunFolder::kFresh}) {
    base::TemporaryDirectory folder;
    std::optional<RunDirectory> late(std::in_place, folder / "run", how, 0);
    RunDirectory later(folder / "run", how, 0);
    std::string weights;
    {
      RunDirectory first(folder / "run", RunFolder::kNew, 0);
      first.create();
      base::write_file_durably(first.config_file(), "lr = 1.0\n");
      weights = first.checkpoint(2) + "/model.safetensors";
      base::make_directories(first.checkpoint(2));
      base::write_file_durably(weights, "precious");
      base::make_directories(first.path() + "/checkpoints/step_000002");
    }
    try {
      late->create();
      ADD_FAILURE() << "it began a run there";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("start again, with --load"), std::string::npos) << error.what();
    }
    EXPECT_TRUE(base::file_exists(weights));
    EXPECT_TRUE(base::directory_exists(folder / "run/checkpoints/step_000002"));
    late.reset();
    fs::remove_all(folder / "run/checkpoints");
    EXPECT_THROW(later.create(), UserError) << "another run has begun, or its weights are there";
    EXPECT_TRUE(base::file_exists(weights));
  }
}

// Somebody removed checkpoints/ to save space, and a fresh start removed the exported weights as well.
TEST(RunDirectory, FreshStartKeepsWeightsOfARunWhoseCheckpointsAreGone) {
  for (const bool is_best : {false, true}) {
    base::TemporaryDirectory folder;
    const std::string path = folder / "run";
    std::string weights;
    {
      RunDirectory first(path, RunFolder::kNew, 0);
      first.create();
      base::write_file_durably(first.config_file(), "lr = 1.0\n");
      weights = is_best ? first.best(2) : first.checkpoint(2);
      base::make_directories(weights);
    }
    // A run that was killed before its first checkpoint has made checkpoints/, and may begin again.
    RunDirectory early(path, RunFolder::kFresh, 0);
    fs::remove_all(path + "/checkpoints");
    try {
      RunDirectory(path, RunFolder::kFresh, 0);
      ADD_FAILURE() << "it may begin again";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("give --overwrite to begin again"), std::string::npos) << error.what();
    }
    EXPECT_THROW(early.create(), UserError) << "under the lock";
    EXPECT_TRUE(base::directory_exists(weights));
    EXPECT_NO_THROW(RunDirectory(path, RunFolder::kOverwrite, 0)) << "that is asked for";
  }
}

TEST(RunDirectory, FreshStartRemovesWhatAKilledRunHasLeft) {
  base::TemporaryDirectory folder;
  {
    RunDirectory first(folder / "run", RunFolder::kNew, 0);
    first.create();
    base::write_file_durably(first.config_file(), "lr = 1.0\n");
    base::make_directories(first.checkpoint(2));
    base::make_directories(first.path() + "/checkpoints/step_000002.tmp-0123456789abcdef");
  }
  RunDirectory again(folder / "run", RunFolder::kFresh, 0);
  EXPECT_EQ(again.removed_with(folder / "run/samples/a"), folder / "run/samples");
  again.create();
  EXPECT_EQ(base::list_directory(again.path()), (std::vector<std::string>{"checkpoints", "hf", "lock"}));
  EXPECT_EQ(base::list_directory(again.path() + "/hf"), std::vector<std::string>{});
  EXPECT_EQ(base::list_directory(again.path() + "/checkpoints"), std::vector<std::string>{});
}

TEST(RunDirectory, FolderThatIsNoRunIsLeftAloneEvenWithOverwrite) {
  base::TemporaryDirectory folder;
  base::make_directories(folder / "home/samples");
  EXPECT_THROW(RunDirectory(folder / "home", RunFolder::kOverwrite, 0), UserError);
  base::write_file_durably(folder / "file", "x");
  EXPECT_THROW(RunDirectory(folder / "file", RunFolder::kOverwrite, 0), UserError);
}

TEST(RunDirectory, KnowsWhatOverwriteRemoves) {
  base::TemporaryDirectory folder;
  const std::string path = folder / "run";
  {
    RunDirectory first(path, RunFolder::kNew, 0);
    first.create();
    base::write_file_durably(first.config_file(), "lr = 1.0\n");
    base::make_directories(first.checkpoint(5));
    first.set_latest(5);
  }
  fs::create_directory_symlink(path, folder / "link");
  fs::create_directory_symlink(path + "/hf/latest", folder / "model");
  const RunDirectory run(path, RunFolder::kOverwrite, 0);
  for (const std::string& input :
       {path + "/hf", path + "/hf/latest", path + "/hf/latest/", path + "/./hf/step_000005/config.json",
        folder / "link/hf/latest", folder / "model", path + "/hf/nothing_yet"}) {
    EXPECT_EQ(run.removed_with(input), path + "/hf") << input;
  }
  EXPECT_EQ(run.removed_with(path + "/samples/rollout_{rollout_id}.jsonl"), path + "/samples");
  for (const std::string& input : {path, path + "/notes.txt", folder / "hf", folder / "other/hf/latest"}) {
    EXPECT_EQ(run.removed_with(input), "") << input;
  }
  EXPECT_EQ(RunDirectory(path, RunFolder::kGoOn, 0).removed_with(path + "/hf/latest"), "") << "a run that resumes";
}

TEST(RunDirectory, TooLittleSpaceIsTheMachinesFault) {
  base::TemporaryDirectory folder;
  EXPECT_THROW(RunDirectory(folder / "run", RunFolder::kNew, int64_t{1} << 60), EnvironmentError);
}

// The check of free space counts the files that --overwrite or a resume removes first: a run that fits once they are
// gone is not refused.
TEST(RunDirectory, WhatIsReplacedCountsAsFree) {
  base::TemporaryDirectory folder;
  const std::string path = folder / "run";
  {
    RunDirectory first(path, RunFolder::kNew, 0);
    first.create();
    base::write_file_durably(first.config_file(), "lr = 1.0\n");
  }
  constexpr int64_t kBytes = int64_t{3} << 20;
  const std::string bytes(kBytes, 'x');
  for (const char* name : {"/checkpoints/step_000001/shard", "/checkpoints/step_000002/shard", "/hf/step_000001/model",
                           "/hf/step_000002/model", "/samples/rollout_000001.jsonl"}) {
    base::make_directories(fs::path(path + name).parent_path().string());
    base::write_file_durably(path + name, bytes);
  }
  base::write_file_durably(path + "/mine", bytes);
  const auto said = [&](RunFolder how, int64_t step) -> std::string {
    return base::thrown_by<EnvironmentError>([&] { RunDirectory(path, how, int64_t{1} << 60, "", step); }, "it fits");
  };
  EXPECT_NE(said(RunFolder::kOverwrite, 0).find(" free, and 15 more once this run has replaced"), std::string::npos)
      << said(RunFolder::kOverwrite, 0);
  EXPECT_NE(said(RunFolder::kGoOn, 1).find(" free, and 9 more once this run has replaced"), std::string::npos)
      << said(RunFolder::kGoOn, 1);
  EXPECT_EQ(said(RunFolder::kGoOn, 2).find("more once"), std::string::npos) << said(RunFolder::kGoOn, 2);
}

TEST(RunDirectory, SaysWhetherARunThatIsThereCanGoOn) {
  base::TemporaryDirectory folder;
  const std::string path = folder / "run";
  {
    RunDirectory first(path, RunFolder::kNew, 0);
    first.create();
    base::write_file_durably(first.config_file(), "lr = 1.0\n");
  }
  const auto said = [&]() -> std::string { return base::thrown_by([&] { RunDirectory(path, RunFolder::kNew, 0); }); };
  EXPECT_EQ(said(), "--save " + path +
                        ": there is a run already, of which nothing is saved yet; give --overwrite, or --load " + path +
                        " --allow-fresh-start, to begin it again, or name another directory");
  base::make_directories(path + "/checkpoints/step_000001");
  EXPECT_EQ(said(), "--save " + path + ": there is a run already; name another directory, give --load " + path +
                        " to resume that run, or --overwrite to replace it");
}

// The run resumes from a step that was saved without an export: the link to newer weights would lead nowhere.
TEST(RunDirectory, LatestFollowsWhatIsTakenBack) {
  base::TemporaryDirectory folder;
  RunDirectory run(folder / "run", RunFolder::kNew, 0);
  run.create();
  base::make_directories(run.path() + "/checkpoints");
  for (const int64_t step : {10, 25}) base::make_directories(run.checkpoint(step));
  run.set_latest(25);
  run.cut_back(20, {});
  EXPECT_EQ(fs::read_symlink(run.path() + "/hf/latest"), "step_000010");
  run.cut_back(5, {});
  EXPECT_FALSE(fs::is_symlink(run.path() + "/hf/latest"));
  EXPECT_EQ(base::list_directory(run.path() + "/hf"), std::vector<std::string>{});
}

TEST(RunDirectory, LatestFollowsTheLastCheckpoint) {
  base::TemporaryDirectory folder;
  RunDirectory run(folder / "run", RunFolder::kNew, 0);
  run.create();
  EXPECT_THROW(find_checkpoint(run.path(), -1), UserError);
  for (const int64_t step : {5, 10}) {
    base::make_directories(run.checkpoint(step));
    base::write_file_durably(run.checkpoint(step) + "/config.json", std::to_string(step));
    run.set_latest(step);
  }
  EXPECT_EQ(base::read_file(find_checkpoint(run.path(), -1) + "/config.json"), "10");
  EXPECT_EQ(base::read_file(find_checkpoint(run.path(), 5) + "/config.json"), "5");
  const std::string latest = find_checkpoint(run.path(), -1);
  run.set_latest(5);
  EXPECT_EQ(base::read_file(latest + "/config.json"), "10") << "who reads it must not be moved to another step";
  run.set_latest(10);
  try {
    find_checkpoint(run.path(), 7);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("step_000005, step_000010"), std::string::npos) << error.what();
  }
  fs::rename(folder / "run", folder / "moved");  // the link is relative
  EXPECT_EQ(base::read_file(find_checkpoint(folder / "moved", -1) + "/config.json"), "10");
}

}  // namespace
}  // namespace tandem::checkpoint
