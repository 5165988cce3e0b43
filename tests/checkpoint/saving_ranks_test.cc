// One checkpoint of several ranks: each writes its boxes, and a reader finds any box, whichever rank wrote it.
#include "checkpoint/saving_ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/files.h"
#include "tandem/error.h"
#include "tests/base/faulty_disk.h"
#include "tests/base/temporary_directory.h"
#include "tests/checkpoint/rank_threads.h"
#include "tests/checkpoint/saved_contents.h"

namespace tandem::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::TemporaryDirectory;

class SavingRanksTest : public testing::Test {
 private:
  base::UnsyncedFileCalls unsynced_;
  base::ReplacedFileCalls replaced_{unsynced_};
};

TEST_F(SavingRanksTest, RanksWriteOneCheckpointTogether) {
  for (const int size : {1, 2, 3, 4, 8}) {
    const TemporaryDirectory folder;
    const Checkpoints checkpoints(folder / "run");
    const Contents contents(2);
    RankThreads threads(size);
    const auto errors = threads.run(
        [&](int rank) { checkpoints.save(2, contents.state, contents.rows_of(rank, size), threads.of(rank)); });
    EXPECT_EQ(errors, std::vector<std::string>(static_cast<size_t>(size))) << size;
    const Checkpoint checkpoint = checkpoints.open(std::nullopt);
    expect_contents(checkpoint);
    // The box spans the parts of several ranks.
    std::vector<float> rows(20);
    checkpoint.read("master.a", "F32", {1, 0}, {4, 5}, std::as_writable_bytes(std::span(rows)));
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), contents.weights.begin() + 5)) << size;
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_TRUE(fs::exists(fmt::format("{}/shard_{:05}.safetensors", checkpoint.directory(), rank)));
    }
  }
}

TEST_F(SavingRanksTest, WhereOneRankCannotWriteNothingIsSavedAndAllSaySo) {
  for (const int failing : {0, 1, 2}) {
    const TemporaryDirectory folder;
    const Checkpoints checkpoints(folder / "run");
    save(checkpoints, 1);
    const Contents contents(2);
    RankThreads threads(3);
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

// Notes which files are made durable, and when a rank sends a message.
class NotedSyncs : public base::UnsyncedFileCalls {
 public:
  int fsync(int fd) override {
    note(fs::read_symlink(fmt::format("/proc/self/fd/{}", fd)).filename().string());
    return UnsyncedFileCalls::fsync(fd);
  }
  void note(const std::string& event) {
    const std::scoped_lock lock(mutex_);
    events_.push_back(event);
  }
  const std::vector<std::string>& events() const { return events_; }

 private:
  std::mutex mutex_;
  std::vector<std::string> events_;
};

// The ranks may be on several machines with a shared folder: no rank's kernel writes out what another one's holds.
TEST(SavingRanksSyncs, EachRankMakesItsOwnShardDurableBeforeItSaysThatItIsWritten) {
  NotedSyncs disk;
  const base::ReplacedFileCalls replaced(disk);
  const TemporaryDirectory folder;
  const Contents contents(2);
  RankThreads threads(2);
  const auto errors = threads.run([&](int rank) {
    SavingRanks ranks = threads.of(rank);
    ranks.all_gather = [&disk, rank, gather = ranks.all_gather](const std::string& mine) {
      disk.note(fmt::format("message of rank {}", rank));
      return gather(mine);
    };
    Checkpoints(folder / "run").save(2, contents.state, contents.rows_of(rank, 2), ranks);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  const std::vector<std::string>& events = disk.events();
  const auto synced = std::ranges::find(events, "shard_00001.safetensors");
  EXPECT_EQ(std::count(events.begin(), synced, "message of rank 1"), 1)
      << "after the folder is made, before it is said";
}

TEST_F(SavingRanksTest, AQuestionIsAnsweredByTheFirstForAll) {
  RankThreads threads(3);
  for (const bool answer : {false, true}) {
    const auto errors = threads.run([&](int rank) {
      EXPECT_EQ(threads.of(rank).of_conductor([&] { return rank == 0 ? answer : !answer; }), answer) << rank;
    });
    EXPECT_EQ(errors, std::vector<std::string>(3));
  }
  const auto errors = threads.run([&](int rank) {
    threads.of(rank).of_conductor([]() -> bool { throw EnvironmentError("the disk does not answer"); });
  });
  EXPECT_EQ(errors, std::vector<std::string>(3, "the disk does not answer"));
}

TEST_F(SavingRanksTest, RanksThatLeaveAGapSaveNothing) {
  const TemporaryDirectory folder;
  const Checkpoints checkpoints(folder / "run");
  const Contents contents(2);
  RankThreads threads(2);
  const auto errors = threads.run([&](int rank) {
    checkpoints.save(2, contents.state, contents.rows_of(rank, 3), threads.of(rank));  // no rank has the last third
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("not the whole tensor"), std::string::npos) << error;
  EXPECT_TRUE(checkpoints.empty());
}

TEST_F(SavingRanksTest, GiveAnyBoxOfATensorWhateverPiecesItLiesIn) {
  const TemporaryDirectory folder;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto draw = [&](int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(random); };
    const int64_t rows = draw(1, 9), columns = draw(1, 9), row_cut = draw(0, rows), column_cut = draw(0, columns);
    // Four ranks of a grid would write this; empty pieces are left out.
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

// Holds the pieces of a tensor [4, 6] in a manifest, and the expected refusal.
struct StatedPieces {
  std::vector<TensorPiece> pieces;
  std::string refusal;  // "": none
};

TEST(Manifest, IsRefusedWhereBoxesAreNotTheTensor) {
  const auto piece = [](std::vector<int64_t> begin, std::vector<int64_t> shape) {
    return TensorPiece{.file = "a", .begin = std::move(begin), .shape = std::move(shape)};
  };
  const std::vector<StatedPieces> cases = {
      {{piece({0, 0}, {4, 2}), piece({0, 2}, {4, 4})}, ""},
      {{piece({0, 0}, {2, 2}), piece({2, 0}, {2, 2}), piece({0, 2}, {4, 4})}, ""},
      {{piece({0, 0}, {4, 3}), piece({0, 2}, {4, 4})}, "pieces 0 and 1 overlap"},
      {{piece({0, 0}, {4, 3}), piece({0, 0}, {4, 3})}, "pieces 0 and 1 overlap"},  // as many elements as the tensor
      {{piece({0, 0}, {2, 6}), piece({1, 3}, {3, 3}), piece({2, 0}, {1, 3})}, "pieces 0 and 1 overlap"},
      {{piece({0, 0}, {4, 2}), piece({0, 3}, {4, 3})}, "not the whole tensor"},
      {{piece({0, 0}, {4, 2}), piece({0, 2}, {3, 4})}, "not the whole tensor"},
      {{piece({0, 0}, {4, 2}), piece({0, 2}, {4, 5})}, "piece 1 lies outside"},
      {{piece({0, 7}, {4, 0}), piece({0, 0}, {4, 6})}, "piece 0 lies outside"},
      {{piece({0, INT64_MAX}, {4, 6}), piece({0, 0}, {4, 6})}, "piece 0 lies outside"},
      {{piece({0}, {4})}, "piece 0 lies outside"},
  };
  for (const StatedPieces& stated : cases) {
    Manifest manifest;
    manifest.files["a"] = {.bytes = 1, .checksum = "c"};
    manifest.tensors["t"] = {.dtype = "F32", .shape = {4, 6}, .pieces = stated.pieces};
    const std::string text = manifest_text(manifest);
    if (stated.refusal.empty()) {
      EXPECT_EQ(parse_manifest(text, "M").tensors.at("t").pieces.size(), stated.pieces.size());
      continue;
    }
    try {
      parse_manifest(text, "M");
      ADD_FAILURE() << "accepted: " << stated.refusal;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(stated.refusal), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace tandem::checkpoint
