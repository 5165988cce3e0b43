// Changed bytes of a checkpoint are found before any of them is used, and the newest good one is named. --soak tries
// more changes.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <random>

#include "base/files.h"
#include "tandem/error.h"
#include "tests/base/faulty_disk.h"
#include "tests/base/soak.h"
#include "tests/base/temporary_directory.h"
#include "tests/checkpoint/saved_contents.h"

namespace tandem::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::TemporaryDirectory;

class DamagedCheckpointsTest : public testing::Test {
 private:
  base::UnsyncedFileCalls unsynced_;
  base::ReplacedFileCalls replaced_{unsynced_};
};

TEST_F(DamagedCheckpointsTest, FindEveryChangedBit) {
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
    // Several bytes change at once, as a bad sector or a cable changes them.
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
  // These files are of the other step, and whole in themselves.
  fs::copy(checkpoints.path(1) + "/state.json", checkpoints.path(2) + "/state.json",
           fs::copy_options::overwrite_existing);
  expect_refused("state.json of another step");
  std::printf("%ld changed bits\n", num_flips);
}

TEST_F(DamagedCheckpointsTest, PointerThatLeadsNowhereIsAnErrorThatNamesTheNewestGoodOne) {
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
  // A kill before the first pointer leaves the newest, whole or not.
  fs::remove(checkpoints.folder() + "/latest");
  EXPECT_FALSE(checkpoints.empty());
  EXPECT_EQ(checkpoints.open(std::nullopt).step(), 2);
  base::truncate_durably(checkpoints.path(2) + "/MANIFEST.json", 10);
  EXPECT_THROW(checkpoints.open(std::nullopt), UserError);
  expect_contents(checkpoints.open(1));
}

}  // namespace
}  // namespace tandem::checkpoint
