// A checkpoint that was saved is found whole whatever happens: kill -9 and failing calls at every point, power cuts
// that lose what was not synced, and bytes that change later. More states with --soak.
#include "checkpoint/checkpoints.h"

#include <fmt/format.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "base/checksum.h"
#include "base/files.h"
#include "checkpoint/load_checkpoint.h"
#include "checkpoint/run_directory.h"
#include "config/checkpoint_options.h"
#include "tandem/error.h"
#include "tests/base/faulty_disk.h"
#include "tests/base/lossy_disk.h"
#include "tests/base/soak.h"
#include "tests/base/temporary_directory.h"

namespace tandem::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::TemporaryDirectory;

constexpr int64_t kSteps = 3, kKept = 2;

// What is saved at a step: everything in it depends on the step.
struct Contents {
  base::Json state;
  std::vector<float> weights;  // [6, 5]
  std::vector<uint16_t> bits;  // [7]

  explicit Contents(int64_t step) : weights(30), bits(7) {
    state["step"] = step;
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(step) + static_cast<float>(i) * 0.25F;
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(step * 100 + static_cast<int64_t>(i));
  }
  std::vector<SavedTensor> tensors() const {
    return {whole_tensor({"master.a", "F32", {6, 5}, std::as_bytes(std::span(weights))}),
            whole_tensor({"b", "BF16", {7}, std::as_bytes(std::span(bits))})};
  }
  // What one of several ranks holds: rows of each tensor. The last ranks of many hold nothing of b.
  std::vector<SavedTensor> rows_of(int rank, int size) const {
    std::vector<SavedTensor> result;
    const auto add = [&](const char* name, const char* dtype, int64_t rows, int64_t columns, auto bytes) {
      const int64_t begin = rows * rank / size, end = rows * (rank + 1) / size;
      if (begin == end) return;
      const size_t row_bytes = bytes.size() / static_cast<size_t>(rows);
      const auto part =
          bytes.subspan(static_cast<size_t>(begin) * row_bytes, static_cast<size_t>(end - begin) * row_bytes);
      if (columns == 0) {
        result.push_back({{name, dtype, {end - begin}, part}, {rows}, {begin}});
      } else {
        result.push_back({{name, dtype, {end - begin, columns}, part}, {rows, columns}, {begin, 0}});
      }
    };
    add("master.a", "F32", 6, 5, std::as_bytes(std::span(weights)));
    add("b", "BF16", 7, 0, std::as_bytes(std::span(bits)));
    return result;
  }
};

// Ranks as threads.
class Threads {
 public:
  explicit Threads(int size) : size_(size), texts_(static_cast<size_t>(size)), barrier_(size) {}

  SavingRanks of(int rank) {
    return {.rank = rank, .size = size_, .all_gather = [this, rank](const std::string& mine) {
              texts_[static_cast<size_t>(rank)] = mine;
              barrier_.arrive_and_wait();
              std::vector<std::string> result = texts_;
              barrier_.arrive_and_wait();
              return result;
            }};
  }
  // Runs f(rank) on all and returns what each threw, or "".
  std::vector<std::string> run(const std::function<void(int)>& f) const {
    std::vector<std::string> errors(static_cast<size_t>(size_));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          f(rank);
        } catch (const std::exception& error) {
          errors[static_cast<size_t>(rank)] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
  }

 private:
  const int size_;
  std::vector<std::string> texts_;
  std::barrier<> barrier_;
};

void save(const Checkpoints& checkpoints, int64_t step) {
  const Contents contents(step);
  checkpoints.save(step, contents.state, contents.tensors());
}

void expect_contents(const Checkpoint& checkpoint) {
  const Contents want(checkpoint.step());
  EXPECT_EQ(checkpoint.state(), want.state);
  std::vector<float> weights(30);
  checkpoint.read("master.a", "F32", {0, 0}, {6, 5}, std::as_writable_bytes(std::span(weights)));
  EXPECT_EQ(weights, want.weights);
  std::vector<uint16_t> bits(7);
  checkpoint.read("b", "BF16", {0}, {7}, std::as_writable_bytes(std::span(bits)));
  EXPECT_EQ(bits, want.bits);
}

class CheckpointsTest : public testing::Test {
 private:
  base::UnsyncedFileCalls unsynced_;
  base::ReplacedFileCalls replaced_{unsynced_};
};

// The promise: from `saved` on (0: none yet) `latest` names a whole checkpoint, and no half one bears a name.
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

// Everything that changes checkpoints: saving, saving a step again, retention, going back. Tells of each saved step.
void work(const std::string& run, const std::function<void(int64_t)>& saved) {
  const Checkpoints checkpoints(run);
  for (int64_t step = 1; step <= kSteps; ++step) {
    save(checkpoints, step);
    saved(step);
    checkpoints.keep_latest(kKept);
  }
  saved(kSteps - 1);  // from here on the newest may go
  checkpoints.rewind(kSteps - 1);
  for (int i = 0; i < 2; ++i) {
    save(checkpoints, kSteps);
    saved(kSteps);
  }
}

TEST_F(CheckpointsTest, RanksWriteOneCheckpointTogether) {
  for (const int size : {1, 2, 3, 4, 8}) {
    const TemporaryDirectory folder;
    const Checkpoints checkpoints(folder / "run");
    const Contents contents(2);
    Threads threads(size);
    const auto errors = threads.run(
        [&](int rank) { checkpoints.save(2, contents.state, contents.rows_of(rank, size), threads.of(rank)); });
    EXPECT_EQ(errors, std::vector<std::string>(static_cast<size_t>(size))) << size;
    const Checkpoint checkpoint = checkpoints.open(std::nullopt);
    expect_contents(checkpoint);
    // Rows across the parts of several ranks.
    std::vector<float> rows(20);
    checkpoint.read("master.a", "F32", {1, 0}, {4, 5}, std::as_writable_bytes(std::span(rows)));
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), contents.weights.begin() + 5)) << size;
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_TRUE(fs::exists(fmt::format("{}/shard_{:05}.safetensors", checkpoint.directory(), rank)));
    }
  }
}

TEST_F(CheckpointsTest, WhereOneRankCannotWriteNothingIsSavedAndAllSaySo) {
  for (const int failing : {0, 1, 2}) {
    const TemporaryDirectory folder;
    const Checkpoints checkpoints(folder / "run");
    save(checkpoints, 1);
    const Contents contents(2);
    Threads threads(3);
    const auto errors = threads.run([&](int rank) {
      std::vector<SavedTensor> tensors = contents.rows_of(rank, 3);
      if (rank == failing) {
        tensors[0].bytes.bytes = {};
        tensors[0].bytes.copy_out = [](int64_t, std::span<std::byte>) { throw EnvironmentError("the disk is full"); };
      }
      checkpoints.save(2, contents.state, std::move(tensors), threads.of(rank));
    });
    for (const std::string& error : errors) EXPECT_NE(error.find("the disk is full"), std::string::npos) << error;
    EXPECT_EQ(checkpoints.steps(), std::vector<int64_t>{1});
    expect_contents(checkpoints.open(std::nullopt));
    EXPECT_EQ(base::list_directory(checkpoints.folder()).size(), 2U) << "the unfinished one is away";
  }
}

TEST_F(CheckpointsTest, RanksThatLeaveAGapSaveNothing) {
  const TemporaryDirectory folder;
  const Checkpoints checkpoints(folder / "run");
  const Contents contents(2);
  Threads threads(2);
  const auto errors = threads.run([&](int rank) {
    checkpoints.save(2, contents.state, contents.rows_of(rank, 3), threads.of(rank));  // nobody has the last third
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("not the whole tensor"), std::string::npos) << error;
  EXPECT_TRUE(checkpoints.empty());
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

TEST_F(CheckpointsTest, GiveAnyBoxOfATensorWhateverPiecesItLiesIn) {
  const TemporaryDirectory folder;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto draw = [&](int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(random); };
    const int64_t rows = draw(1, 9), columns = draw(1, 9), row_cut = draw(0, rows), column_cut = draw(0, columns);
    // As four ranks of a grid would write it; empty pieces are left out.
    Manifest manifest;
    manifest.step = 1;
    const std::string directory = folder / ("step" + std::to_string(seed));
    fs::create_directory(directory);
    ManifestTensor tensor{.dtype = "F32", .shape = {rows, columns}, .pieces = {}};
    for (int64_t rank = 0; rank < 4; ++rank) {
      const int64_t r0 = rank < 2 ? 0 : row_cut, r1 = rank < 2 ? row_cut : rows;
      const int64_t c0 = rank % 2 == 0 ? 0 : column_cut, c1 = rank % 2 == 0 ? column_cut : columns;
      if (r0 == r1 || c0 == c1) continue;
      std::vector<float> piece;
      for (int64_t r = r0; r < r1; ++r)
        for (int64_t c = c0; c < c1; ++c) piece.push_back(static_cast<float>(r * 100 + c));
      const std::string name = "shard_" + std::to_string(rank) + ".safetensors";
      weights::write_safetensors(directory + "/" + name,
                                 {{"t", "F32", {r1 - r0, c1 - c0}, std::as_bytes(std::span(piece))}});
      tensor.pieces.push_back({.file = name, .begin = {r0, c0}, .shape = {r1 - r0, c1 - c0}});
    }
    manifest.tensors["t"] = tensor;
    base::write_file_durably(directory + "/state.json", "{}\n");
    for (const std::string& name : base::list_directory(directory))
      manifest.files[name] = {base::ReadableFile(directory + "/" + name).size(),
                              base::file_checksum(directory + "/" + name)};
    base::write_file_durably(directory + "/MANIFEST.json", manifest_text(manifest));

    const Checkpoint checkpoint(directory);
    const int64_t r = draw(0, rows - 1), c = draw(0, columns - 1), h = draw(1, rows - r), w = draw(1, columns - c);
    std::vector<float> box(static_cast<size_t>(h * w));
    checkpoint.read("t", "F32", {r, c}, {h, w}, std::as_writable_bytes(std::span(box)));
    for (int64_t i = 0; i < h * w; ++i)
      ASSERT_EQ(box[static_cast<size_t>(i)], static_cast<float>((r + i / w) * 100 + c + i % w));
  }
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
    // And the next run goes on from there.
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

// What `train --load RUN --allow-fresh-start` does to files, from the start to its last step.
void run_or_go_on(const std::string& run, int64_t last_step) {
  config::CheckpointOptions options;
  options.load = run;
  options.allow_fresh_start = true;
  const std::optional<Checkpoint> checkpoint = open_checkpoint(options);
  RunDirectory directory(run, run_folder(options, run, /*overwrite=*/false), /*needed_bytes=*/0);
  directory.create();
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
    base::Json state = contents.state;
    state["file_bytes"] = directory.growing_files();
    base::make_directories(directory.checkpoint(step));
    directory.set_latest(step);
    Checkpoints(run).save(step, state, contents.tensors());
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

// Its first start, its steps, and going on after a kill that left records behind: killed in any call, the next start
// needs no help.
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
        Checkpoints(run).save(kSteps, {}, {});  // which --ckpt-step would leave behind
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

// One history of the disk, and when each step counted as saved.
struct History {
  TemporaryDirectory run;
  base::LossyDisk disk{run.path()};
  std::vector<std::pair<size_t, int64_t>> saved;  // (point, step)

  History() {
    const base::ReplacedFileCalls replaced(disk);
    work(run.path(), [&](int64_t step) { saved.emplace_back(disk.now(), step); });
  }
  // The step that must be there after a power cut at `point`.
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

// Leaves out one sync at a time: some power cut must then break the promise, or the sync would be there for nothing.
// But for one: while there is no pointer the newest is gone on from, so the first pointer's name may be lost.
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

TEST_F(CheckpointsTest, FindEveryChangedBit) {
  const TemporaryDirectory run;
  const Checkpoints checkpoints(run.path());
  save(checkpoints, 1);
  save(checkpoints, 2);
  const auto expect_refused = [&](const std::string& what) {
    try {
      checkpoints.open(std::nullopt);
      ADD_FAILURE() << what << ": not noticed";
    } catch (const UserError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("give --ckpt-step 1"), std::string::npos) << text;
    }
  };
  int64_t num_flips = 0;
  for (const std::string name : {"MANIFEST.json", "state.json", "shard_00000.safetensors"}) {
    const std::string path = checkpoints.path(2) + "/" + name;
    const std::string good = base::read_file(path);
    const auto write = [&](const std::string& text) {
      std::FILE* file = std::fopen(path.c_str(), "wb");
      std::fwrite(text.data(), 1, text.size(), file);
      std::fclose(file);
    };
    for (size_t bit = 0; bit < good.size() * 8; ++bit, ++num_flips) {
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
      write(bad);
      expect_refused(name + ", bit " + std::to_string(bit));
    }
    // Several at once, as a bad sector or a cable changes them.
    const int64_t num_bursts = base::short_or_full(100, 4000);
    std::mt19937_64 random(name.size());
    for (int64_t i = 0; i < num_bursts; ++i, ++num_flips) {
      std::string bad = good;
      for (int64_t byte = 0; byte < 1 + i % 16; ++byte)
        bad[random() % bad.size()] ^= static_cast<char>(1 + random() % 255);
      if (bad == good) continue;
      write(bad);
      expect_refused(name + ", burst " + std::to_string(i));
    }
    for (size_t size = 0; size < good.size(); ++size) {
      write(good.substr(0, size));
      expect_refused(name + ", cut to " + std::to_string(size));
    }
    write(good + "x");
    expect_refused(name + ", one byte more");
    fs::remove(path);
    expect_refused(name + ", missing");
    write(good);
    if (HasFailure()) return;
  }
  expect_contents(checkpoints.open(std::nullopt));
  // Of the other step, whole in itself.
  fs::copy(checkpoints.path(1) + "/state.json", checkpoints.path(2) + "/state.json",
           fs::copy_options::overwrite_existing);
  expect_refused("state.json of another step");
  std::printf("%ld changed bits\n", num_flips);
}

TEST_F(CheckpointsTest, PointerThatLeadsNowhereIsAnErrorThatNamesTheNewestGoodOne) {
  const TemporaryDirectory run;
  const Checkpoints checkpoints(run.path());
  EXPECT_THROW(checkpoints.open(std::nullopt), UserError);
  save(checkpoints, 1);
  save(checkpoints, 2);
  for (const std::string pointer :
       {"", "\n", "step_000003\n", "step_2\n", "../step_000001\n", "step_000002 \n", "\xff\n"}) {
    base::write_file_durably(checkpoints.folder() + "/latest", pointer);
    try {
      checkpoints.open(std::nullopt);
      ADD_FAILURE() << "accepted: " << pointer;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("give --ckpt-step 2"), std::string::npos) << error.what();
    }
  }
  // A kill before the first pointer: the newest, whole or not.
  fs::remove(checkpoints.folder() + "/latest");
  EXPECT_FALSE(checkpoints.empty());
  EXPECT_EQ(checkpoints.open(std::nullopt).step(), 2);
  base::truncate_durably(checkpoints.path(2) + "/MANIFEST.json", 10);
  EXPECT_THROW(checkpoints.open(std::nullopt), UserError);
  expect_contents(checkpoints.open(1));
}

}  // namespace
}  // namespace tandem::checkpoint
