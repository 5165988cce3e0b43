// LibTorch's allocations reach the arena under the right tag, in the right view, and not at all outside of the phases.
#include "memory/arena_allocator.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "tandem/error.h"
#include "tests/memory/simulated_device.h"

namespace tandem::memory {

namespace {

struct TensorMemoryTest : testing::Test {
  SimulatedDevice device{8};
  Arena arena{device.pool, {.num_extents = 8, .size_flag = "--max-tokens-per-gpu"}};
  ArenaAllocator memory{arena};
  void TearDown() override { arena.check(); }
  int64_t bytes(Tag tag) const { return device.ledger.current_bytes(tag); }
};

TEST_F(TensorMemoryTest, PhasesAllocateFromTheirView) {
  EXPECT_EQ(memory.allocate(512), nullptr) << "what loading takes lasts: it is not the arena's";
  arena.enter(Phase::kTrain);
  std::byte* const gradient = memory.allocate(512);
  EXPECT_EQ(gradient, arena.data(View::kTrain) + arena.bytes() - 512);
  EXPECT_TRUE(memory.free(gradient));
  arena.enter(Phase::kRollout);
  std::byte* const hidden = memory.allocate(512);
  EXPECT_EQ(hidden, arena.data(View::kRollout));
  EXPECT_TRUE(memory.free(hidden));
  std::byte elsewhere;
  EXPECT_FALSE(memory.free(&elsewhere));
}

TEST_F(TensorMemoryTest, AllocationsHaveTheTagInForceOnAnyThread) {
  arena.enter(Phase::kTrain);
  std::byte *own = nullptr, *others = nullptr, *after = nullptr;
  {
    const TagScope outer(Tag::kBlockGraphs);
    {
      const TagScope inner(Tag::kHead, "logits");
      own = memory.allocate(512);
      std::thread([&] { others = memory.allocate(512); }).join();  // as a backward pass does
    }
    EXPECT_EQ(bytes(Tag::kHead), 1024);
    after = memory.allocate(512);
    EXPECT_EQ(bytes(Tag::kBlockGraphs), 512) << "the outer scope is in force again";
  }
  std::byte* const outside = memory.allocate(512);
  EXPECT_EQ(bytes(Tag::kOverhead), 512);
  EXPECT_TRUE(memory.free(after) && memory.free(outside));
  try {
    arena.enter(Phase::kRollout);
    FAIL() << "with live tensors";
  } catch (const BugError& error) {
    EXPECT_NE(std::string(error.what()).find("logits of tag head"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(memory.free(own) && memory.free(others));
  EXPECT_EQ(bytes(Tag::kHead), 0) << "freed under the tag that it was taken with";
  EXPECT_EQ(device.ledger.high_water_bytes(Tag::kHead, Phase::kTrain), 1024);
}

TEST_F(TensorMemoryTest, WhatSurvivesAScopeCountsForAnotherTag) {
  arena.enter(Phase::kTrain);
  std::byte *saved = nullptr, *input = nullptr;
  {
    const SavedForBackwardScope block(Tag::kBlockScratch, Tag::kBlockGraphs);
    std::byte* const temporary = memory.allocate(4096);
    saved = memory.allocate(1024);
    input = memory.allocate(512);
    retag(input, Tag::kBlockInputs);
    memory.free(temporary);
  }
  EXPECT_EQ(bytes(Tag::kBlockScratch), 0);
  EXPECT_EQ(bytes(Tag::kBlockGraphs), 1024);
  EXPECT_EQ(bytes(Tag::kBlockInputs), 512);
  EXPECT_EQ(device.ledger.high_water_bytes(Tag::kBlockScratch, Phase::kTrain), 5632);
  int elsewhere = 0;
  retag(&elsewhere, Tag::kHead);
  EXPECT_TRUE(memory.free(saved) && memory.free(input));
}

TEST_F(TensorMemoryTest, ThreadsBesideThePhasesKeepOutOfThem) {
  arena.enter(Phase::kRollout);
  std::thread([&] {
    const BypassArena beside;
    EXPECT_EQ(memory.allocate(512), nullptr);
  }).join();
  std::byte* const own = memory.allocate(512);
  EXPECT_NE(own, nullptr);
  memory.free(own);
}

TEST_F(TensorMemoryTest, AFullViewIsAnErrorThatSaysWhatToChange) {
  arena.enter(Phase::kTrain);
  const TagScope scope(Tag::kHead);
  try {
    memory.allocate(arena.bytes() + 1);
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("of tag head do not fit into the train view"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("--max-tokens-per-gpu"), std::string::npos);
  }
}

TEST_F(TensorMemoryTest, ThereIsOneAtATime) { EXPECT_THROW(ArenaAllocator{arena}, BugError); }

TEST(ArenaAllocator, ScopesMeanNothingWithoutOne) {
  const TagScope tag(Tag::kHead);
  const SavedForBackwardScope block(Tag::kBlockScratch, Tag::kBlockGraphs);
  retag(&tag, Tag::kHead);
}

}  // namespace
}  // namespace tandem::memory
