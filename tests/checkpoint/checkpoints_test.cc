// A checkpoint that was saved is found whole whatever happens: kill -9 and failing calls at every point, and power cuts
// that lose unsynced bytes. --soak tries more states.
#include "checkpoint/checkpoints.h"

#include <fmt/format.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>

#include "base/files.h"
#include "checkpoint/load_checkpoint.h"
#include "checkpoint/run_directory.h"
#include "checkpoint/run_state.h"
#include "config/checkpoint_options.h"
#include "tandem/error.h"
#include "tests/base/faulty_disk.h"
#include "tests/base/lossy_disk.h"
#include "tests/base/soak.h"
#include "tests/base/temporary_directory.h"
#include "tests/checkpoint/saved_contents.h"

namespace tandem::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::TemporaryDirectory;

constexpr int64_t kSteps = 3, kKept = 2;

class CheckpointsTest : public testing::Test {
 private:
  base::UnsyncedFileCalls unsynced_;
  base::ReplacedFileCalls replaced_{unsynced_};
};

// Checks the promise: from `saved` on (0: none yet) `latest` names a whole checkpoint, and no half one bears a name.
void expect_whole(const std::string& run, int64_t saved) {
  const Checkpoints checkpoints(run);
  for (const int64_t step : checkpoints.steps()) EXPECT_NO_THROW(Checkpoint(checkpoints.path(step))) << step;
  if (saved == 0 && checkpoints.empty()) return;
  try {
    const Checkpoint checkpoint = checkpoints.open(std::nullopt);
    EXPECT_GE(checkpoint.step(), saved);
    expect_contents(checkpoint);
  } catch (const UserError& error) {
    ADD_FAILURE() << "saved: " << saved << ", and: " << error.what();
  }
}

// Makes every change to checkpoints: saving, saving a step again, retention, going back. Calls `saved` for each saved
// step.
void work(const std::string& run, const std::function<void(int64_t)>& saved) {
  const Checkpoints checkpoints(run);
  for (int64_t step = 1; step <= kSteps; ++step) {
    save(checkpoints, step);
    saved(step);
    checkpoints.keep_latest(kKept);
  }
  saved(kSteps - 1);  // from here on the newest may be removed
  checkpoints.rewind(kSteps - 1);
  for (int i = 0; i < 2; ++i) {
    save(checkpoints, kSteps);
    saved(kSteps);
  }
}

TEST_F(CheckpointsTest, GiveBackWhatWasSaved) {
  const TemporaryDirectory run;
  const Checkpoints checkpoints(run.path());
  EXPECT_TRUE(checkpoints.empty());
  work(run.path(), [](int64_t) {});
  EXPECT_EQ(checkpoints.steps(), (std::vector<int64_t>{kSteps - 1, kSteps}));
  expect_contents(checkpoints.open(std::nullopt));
  expect_contents(checkpoints.open(kSteps - 1));
}

TEST_F(CheckpointsTest, SurviveKillAtEveryCall) {
  int64_t num_points = 0;
  for (bool finished = false; !finished; ++num_points) {
    SCOPED_TRACE("killed in call " + std::to_string(num_points));
    const TemporaryDirectory run;
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      base::DyingFileCalls dying(num_points);
      const base::ReplacedFileCalls replaced(dying);
      work(run.path(), [&](int64_t step) { [[maybe_unused]] const auto n = ::write(ends[1], &step, sizeof step); });
      ::_exit(0);
    }
    ::close(ends[1]);
    int64_t saved = 0, step = 0;
    while (::read(ends[0], &step, sizeof step) == sizeof step) saved = step;
    ::close(ends[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    finished = WIFEXITED(status);
    expect_whole(run.path(), saved);
    // The next run resumes from there.
    const Checkpoints checkpoints(run.path());
    if (saved > 0) {
      checkpoints.rewind(checkpoints.open(std::nullopt).step());
      save(checkpoints, kSteps + 1);
      expect_whole(run.path(), kSteps + 1);
      for (const std::string& name : base::list_directory(checkpoints.folder()))
        EXPECT_EQ(name.find(".tmp-"), std::string::npos) << name;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(num_points, 100);
  std::printf("%ld points\n", num_points);
}

// A disk that failed for a moment once made a run go back to an older checkpoint.
TEST_F(CheckpointsTest, ThatCannotBeReadNowAreNotCalledDamaged) {
  const TemporaryDirectory run;
  const Checkpoints checkpoints(run.path());
  for (const int64_t step : {1, 2}) save(checkpoints, step);
  for (const bool only_reads_fail : {false, true}) {
    base::UnreadablePaths disk("step_000002/shard", EIO);
    disk.only_reads_fail = only_reads_fail;
    const base::ReplacedFileCalls replaced(disk);
    try {
      checkpoints.open(std::nullopt);
      ADD_FAILURE() << "it was opened";
    } catch (const std::exception& error) {
      const std::string what = error.what();
      EXPECT_NE(dynamic_cast<const EnvironmentError*>(&error), nullptr) << what;
      EXPECT_NE(what.find("Input/output error"), std::string::npos) << what;
      EXPECT_EQ(what.find("--ckpt-step"), std::string::npos) << what;
    }
  }
  EXPECT_EQ(checkpoints.open(std::nullopt).step(), 2);
  base::UnreadablePaths disk("step_000001", EIO);
  const base::ReplacedFileCalls replaced(disk);
  EXPECT_EQ(checkpoints.open(std::nullopt).step(), 2) << "the other one was not asked for";
}

TEST_F(CheckpointsTest, ShowWhetherAnotherRunHasWorkedOnThemSince) {
  const auto is_refused = [](const Checkpoint& checkpoint) {
    try {
      check_still_opened(checkpoint);
    } catch (const EnvironmentError& error) {
      return std::string(error.what()).find("start again") != std::string::npos;
    }
    return false;
  };
  const TemporaryDirectory run;
  const Checkpoints checkpoints(run.path());
  for (const int64_t step : {1, 2}) save(checkpoints, step);
  const Checkpoint latest = checkpoints.open(std::nullopt), older = checkpoints.open(1);
  EXPECT_FALSE(is_refused(latest));
  EXPECT_FALSE(is_refused(older)) << "--ckpt-step asks for it on purpose";
  save(checkpoints, 3);
  EXPECT_TRUE(is_refused(latest));
  EXPECT_TRUE(is_refused(older));
  const Checkpoint newest = checkpoints.open(std::nullopt);
  checkpoints.keep_latest(1);
  EXPECT_TRUE(is_refused(newest));
}

// A disk that failed for a moment once made another directory of the run's own.
TEST_F(CheckpointsTest, ADirectoryThatCannotBeLookedAtIsNotTakenForAnother) {
  const TemporaryDirectory folder;
  config::CheckpointOptions options;
  options.load = folder / "run";
  EXPECT_TRUE(resumes_in_place(options, folder / "run/"));
  EXPECT_FALSE(resumes_in_place(options, folder / "other"));
  fs::create_symlink(folder / "loop", folder / "loop");
  options.load = folder / "loop";
  EXPECT_THROW(resumes_in_place(options, folder / "run"), EnvironmentError);
}

// Does what `train --load RUN --allow-fresh-start` does to files, from the start to its last step.
void run_or_go_on(const std::string& run, int64_t last_step) {
  config::CheckpointOptions options;
  options.load = run;
  options.allow_fresh_start = true;
  const std::optional<Checkpoint> checkpoint = open_checkpoint(options, {});
  RunDirectory directory(run, run_folder(options, run, /*overwrite=*/false), /*needed_bytes=*/0);
  directory.create();
  if (checkpoint) check_still_opened(*checkpoint);
  base::make_directories(directory.samples_folder());
  int64_t step = 0;
  if (checkpoint) {
    step = checkpoint->step();
    directory.cut_back(step, checkpoint->state().at("file_bytes").get<std::map<std::string, int64_t>>());
  }
  base::write_file_durably(directory.config_file(), "num-rollout = 3\n");
  base::LineFile metrics(directory.metrics_file(), /*truncate=*/!checkpoint);
  while (step < last_step) {
    metrics.write_line(std::to_string(step));
    base::write_file_durably(fmt::format("{}/rollout_{:06}.jsonl", directory.samples_folder(), step), "{}\n");
    ++step;
    metrics.sync();
    const Contents contents(step);
    RunState state;
    state.step = step;
    state.file_bytes = directory.growing_files();
    base::make_directories(directory.checkpoint(step));
    directory.set_latest(step);
    Checkpoints(run).save(step, state.to_json(), contents.tensors());
    Checkpoints(run).keep_latest(kKept);
  }
}

void expect_finished(const std::string& run) {
  EXPECT_EQ(base::read_file(run + "/metrics.jsonl"), "0\n1\n2\n");
  EXPECT_EQ(base::list_directory(run + "/samples"),
            (std::vector<std::string>{"rollout_000000.jsonl", "rollout_000001.jsonl", "rollout_000002.jsonl"}));
  EXPECT_EQ(Checkpoints(run).open(std::nullopt).step(), kSteps);
  EXPECT_EQ(fs::read_symlink(run + "/hf/latest").string(), fmt::format("step_{:06}", kSteps));
  for (const auto& entry : fs::recursive_directory_iterator(run))
    EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << entry.path();
}

// The run starts, makes its steps, and resumes after a kill that left records behind: killed in any call, the next
// start needs no help.
TEST_F(CheckpointsTest, LetARunGoOnThatWasKilledAtAnyCall) {
  int64_t num_points = 0;
  for (const bool again : {false, true}) {
    bool finished = false;
    for (int64_t k = 0; !finished; ++k, ++num_points) {
      SCOPED_TRACE("killed in call " + std::to_string(k) + (again ? " of going on" : ""));
      const TemporaryDirectory folder;
      const std::string run = folder / "run";
      if (again) {
        run_or_go_on(run, kSteps - 1);
        std::ofstream(run + "/metrics.jsonl", std::ios::app) << "2\nhalf a li";
        std::ofstream(run + "/samples/rollout_000002.jsonl") << "half";
        Checkpoints(run).save(kSteps, {}, {});  // --ckpt-step would leave it behind
        base::write_file_durably(run + "/checkpoints/latest", fmt::format("step_{:06}\n", kSteps - 1));
      }
      const pid_t child = ::fork();
      if (child == 0) {
        base::DyingFileCalls dying(k);
        const base::ReplacedFileCalls replaced(dying);
        run_or_go_on(run, kSteps);
        ::_exit(0);
      }
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      finished = WIFEXITED(status);
      EXPECT_NO_THROW(run_or_go_on(run, kSteps));
      expect_finished(run);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(num_points, 200);
  std::printf("%ld points\n", num_points);
}

TEST_F(CheckpointsTest, SurviveEveryFailingCall) {
  int64_t num_points = 0;
  const std::vector<int> errors = base::soaking() ? std::vector{ENOSPC, EIO, EDQUOT, EROFS} : std::vector{ENOSPC};
  for (const int error : errors) {
    for (const bool for_good : {false, true}) {
      for (const bool short_writes : {false, true}) {
        bool finished = false;
        for (int64_t k = 0; !finished; ++k, ++num_points) {
          SCOPED_TRACE("call " + std::to_string(k) + " fails with " + std::strerror(error));
          const TemporaryDirectory run;
          int64_t saved = 0;
          {
            base::FailingFileCalls failing(k, error, for_good, short_writes);
            const base::ReplacedFileCalls replaced(failing);
            try {
              work(run.path(), [&](int64_t step) { saved = step; });
              finished = failing.num_calls() <= k;
            } catch (const EnvironmentError& failure) {
              const std::string what = failure.what();
              EXPECT_NE(what.find(std::strerror(error)), std::string::npos) << what;
              EXPECT_NE(what.find(run.path()), std::string::npos) << what;
              EXPECT_EQ(what.find('\n'), std::string::npos) << what;
            }
          }
          expect_whole(run.path(), saved);
          if (HasFailure()) return;
        }
      }
    }
  }
  EXPECT_GT(num_points, 300);
  std::printf("%ld points\n", num_points);
}

// Records one history of the disk, and the times at which each step counted as saved.
struct History {
  TemporaryDirectory run;
  base::LossyDisk disk{run.path()};
  std::vector<std::pair<size_t, int64_t>> saved;  // (point, step)

  History() {
    const base::ReplacedFileCalls replaced(disk);
    work(run.path(), [&](int64_t step) { saved.emplace_back(disk.now(), step); });
  }
  // Returns the step that must be there after a power cut at `point`.
  int64_t saved_at(size_t point) const {
    int64_t step = 0;
    for (const auto& [when, what] : saved) {
      if (when <= point) step = what;
    }
    return step;
  }
};

void expect_whole_after_power_cut(const History& history, size_t point, base::LossyDisk::Luck luck,
                                  std::mt19937_64& random, const std::set<size_t>& left_out) {
  const TemporaryDirectory state;
  history.disk.materialise(point, luck, random, left_out, state.path());
  expect_whole(state.path(), history.saved_at(point));
}

TEST_F(CheckpointsTest, SurvivePowerCuts) {
  const History history;
  const size_t num_points = history.disk.now() + 1;
  const int64_t wanted = base::short_or_full(1000, 20000);
  int64_t num_states = 0;
  for (uint64_t seed = 0; num_states < wanted; ++seed) {
    for (size_t point = 0; point < num_points && num_states < wanted; ++point, ++num_states) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", power cut after operation " + std::to_string(point));
      std::mt19937_64 random(seed * 1000003 + point);
      const auto luck = seed < 3 ? static_cast<base::LossyDisk::Luck>(seed) : base::LossyDisk::Luck::kRandom;
      expect_whole_after_power_cut(history, point, luck, random, {});
      if (HasFailure()) return;
    }
  }
  std::printf("%ld disk states of %zu points\n", num_states, num_points);
}

// The test leaves out one sync at a time: some power cut must then break the promise, or the sync would be useless.
// There is one exception: without a pointer a run resumes from the newest, so the first pointer's name may be lost.
TEST_F(CheckpointsTest, NeedEverySync) {
  const History history;
  const std::vector<size_t> syncs = history.disk.syncs();
  EXPECT_GT(syncs.size(), 25U);
  int num_needless = 0;
  for (const size_t sync : syncs) {
    bool caught = false;
    for (uint64_t seed = 0; seed < 30 && !caught; ++seed) {
      for (size_t point = sync + 1; point <= history.disk.now() && point < sync + 40 && !caught; ++point) {
        std::mt19937_64 random(seed * 1000003 + point);
        const auto luck = seed < 3 ? static_cast<base::LossyDisk::Luck>(seed) : base::LossyDisk::Luck::kRandom;
        testing::TestPartResultArray failures;
        {
          testing::ScopedFakeTestPartResultReporter reporter(
              testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
          expect_whole_after_power_cut(history, point, luck, random, {sync});
        }
        caught = failures.size() > 0;
      }
    }
    const bool is_before_first_save = history.saved_at(sync) == 0;
    if (!caught && is_before_first_save &&
        history.disk.describe(sync).find("checkpoints (directory)") != std::string::npos)
      caught = ++num_needless == 1;
    EXPECT_TRUE(caught) << "nothing shows that operation " << sync << ", the " << history.disk.describe(sync)
                        << ", is left out";
  }
}

}  // namespace
}  // namespace tandem::checkpoint
