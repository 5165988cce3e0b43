// The allocator takes the best fit at the right end and loses no byte.
#include "memory/view_allocator.h"

#include <gtest/gtest.h>

#include <random>

#include "tandem/error.h"

namespace tandem::memory {

namespace {

constexpr int64_t kUnit = ViewAllocator::kAlignmentBytes;

TEST(ViewAllocator, AlignsAndRoundsUp) {
  ViewAllocator allocator(GrowsFrom::kLowEnd);
  allocator.add(0, 10 * kUnit);
  EXPECT_EQ(allocator.allocate(1, Tag::kKv, "a"), 0);
  EXPECT_EQ(allocator.allocate(kUnit + 1, Tag::kKv, "b"), kUnit);
  EXPECT_EQ(allocator.allocate(kUnit, Tag::kKv, "c"), 3 * kUnit);
  EXPECT_EQ(allocator.allocated_bytes(), 4 * kUnit);
  allocator.check();
}

TEST(ViewAllocator, GrowsFromItsEnd) {
  ViewAllocator low(GrowsFrom::kLowEnd), high(GrowsFrom::kHighEnd);
  low.add(0, 10 * kUnit);
  high.add(0, 10 * kUnit);
  EXPECT_EQ(low.allocate(2 * kUnit, Tag::kKv, "a"), 0);
  EXPECT_EQ(low.allocate(2 * kUnit, Tag::kKv, "b"), 2 * kUnit);
  EXPECT_EQ(high.allocate(2 * kUnit, Tag::kHead, "a"), 8 * kUnit);
  EXPECT_EQ(high.allocate(2 * kUnit, Tag::kHead, "b"), 6 * kUnit);
}

TEST(ViewAllocator, TakesTheSmallestHoleThatFits) {
  for (const GrowsFrom end : {GrowsFrom::kLowEnd, GrowsFrom::kHighEnd}) {
    ViewAllocator allocator(end);
    allocator.add(0, 5 * kUnit);
    allocator.add(10 * kUnit, 2 * kUnit);
    allocator.add(20 * kUnit, 3 * kUnit);
    allocator.add(30 * kUnit, 2 * kUnit);
    // Among equal holes it takes the one at the end that it grows from.
    EXPECT_EQ(allocator.allocate(2 * kUnit, Tag::kHead, "a"), (end == GrowsFrom::kLowEnd ? 10 : 30) * kUnit);
    EXPECT_EQ(allocator.allocate(3 * kUnit, Tag::kHead, "b"), 20 * kUnit);
    EXPECT_EQ(allocator.allocate(6 * kUnit, Tag::kHead, "c"), std::nullopt);
    EXPECT_EQ(allocator.largest_hole_bytes(), 5 * kUnit);
  }
}

TEST(ViewAllocator, HolesBecomeOneAgain) {
  ViewAllocator allocator(GrowsFrom::kLowEnd);
  allocator.add(0, 3 * kUnit);
  const int64_t a = *allocator.allocate(kUnit, Tag::kKv, "a"), b = *allocator.allocate(kUnit, Tag::kKv, "b"),
                c = *allocator.allocate(kUnit, Tag::kKv, "c");
  allocator.free(a);
  allocator.free(c);
  EXPECT_EQ(allocator.largest_hole_bytes(), kUnit);
  allocator.free(b);
  EXPECT_EQ(allocator.largest_hole_bytes(), 3 * kUnit);
  allocator.check();
}

TEST(ViewAllocator, MisuseIsABug) {
  ViewAllocator allocator(GrowsFrom::kLowEnd);
  allocator.add(0, 4 * kUnit);
  EXPECT_THROW(allocator.add(3 * kUnit, kUnit), BugError);
  EXPECT_THROW(allocator.allocate(0, Tag::kKv, "a"), BugError);
  const int64_t a = *allocator.allocate(kUnit, Tag::kKv, "a");
  EXPECT_THROW(allocator.remove(0, 4 * kUnit), BugError);
  EXPECT_THROW(allocator.free(kUnit), BugError);
  allocator.free(a);
  EXPECT_THROW(allocator.free(a), BugError);
  allocator.check();
}

TEST(ViewAllocator, SameCallsGiveSameOffsets) {
  constexpr uint64_t kSeed = 7;
  RecordProperty("seed", static_cast<int>(kSeed));
  for (const GrowsFrom end : {GrowsFrom::kLowEnd, GrowsFrom::kHighEnd}) {
    std::vector<int64_t> first_offsets;
    for (int round = 0; round < 2; ++round) {
      std::mt19937_64 random(kSeed);
      ViewAllocator allocator(end);
      allocator.add(0, 4096 * kUnit);
      std::vector<int64_t> offsets, live;
      for (int i = 0; i < 4000; ++i) {
        if (live.empty() || random() % 5 < 3) {
          const auto offset = allocator.allocate(1 + static_cast<int64_t>(random() % (64 * kUnit)), Tag::kHead, "x");
          offsets.push_back(offset.value_or(-1));
          if (offset) live.push_back(*offset);
        } else {
          std::swap(live[random() % live.size()], live.back());
          allocator.free(live.back());
          live.pop_back();
        }
        if (i % 100 == 0) allocator.check();
      }
      if (round == 0) first_offsets = offsets;
      EXPECT_EQ(first_offsets, offsets);
      for (const int64_t offset : live) allocator.free(offset);
      EXPECT_EQ(allocator.largest_hole_bytes(), 4096 * kUnit) << "all of it is one hole again";
    }
  }
}

}  // namespace
}  // namespace tandem::memory
