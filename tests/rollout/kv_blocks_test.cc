// Tests of reference-counted blocks: lowest first, shared, moved, never leaked.
#include "rollout/kv_blocks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "tandem/error.h"

namespace tandem::rollout {
namespace {

TEST(BlockPool, GivesTheLowestFreeBlock) {
  BlockPool pool(130);
  for (int32_t block = 0; block < 130; ++block) EXPECT_EQ(pool.allocate(), block);
  EXPECT_EQ(pool.allocate(), std::nullopt);
  for (const int32_t block : {129, 64, 3, 70}) pool.release(block);
  for (const int32_t block : {3, 64, 70, 129}) EXPECT_EQ(pool.allocate(), block);
  pool.check_invariants();
}

TEST(BlockPool, KeepsABlockUntilItsLastReferenceIsReleased) {
  BlockPool pool(2);
  ASSERT_EQ(pool.allocate(), 0);
  pool.add_reference(0);
  pool.release(0);
  EXPECT_EQ(pool.num_used(), 1);
  pool.release(0);
  EXPECT_EQ(pool.num_used(), 0);
  EXPECT_THROW(pool.release(0), BugError);
  EXPECT_THROW(pool.add_reference(1), BugError);
}

TEST(BlockPool, CompactsToTheLowestBlocksAndKeepsCounts) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    BlockPool pool(1 + random() % 200);
    std::vector<int32_t> held;  // one entry per reference
    for (int i = 0; i < 300; ++i) {
      const uint32_t action = random() % 3;
      if (action == 0 || held.empty()) {
        if (const auto block = pool.allocate()) held.push_back(*block);
      } else if (action == 1) {
        held.push_back(held[random() % held.size()]);
        pool.add_reference(held.back());
      } else {
        std::swap(held[random() % held.size()], held.back());
        pool.release(held.back());
        held.pop_back();
      }
      pool.check_invariants();
    }
    std::vector<int32_t> counts_before;
    for (const int32_t block : held) counts_before.push_back(pool.reference_count(block));
    const std::set<int32_t> used(held.begin(), held.end());
    const std::vector<int32_t> new_place = pool.compact();
    pool.check_invariants();
    EXPECT_EQ(pool.used_end(), pool.num_used());
    EXPECT_EQ(pool.num_used(), static_cast<int64_t>(used.size()));
    std::set<int32_t> places;
    for (const int32_t block : used) {
      EXPECT_LE(new_place[static_cast<size_t>(block)], block);
      places.insert(new_place[static_cast<size_t>(block)]);
    }
    EXPECT_EQ(places.size(), used.size());
    for (size_t i = 0; i < held.size(); ++i) {
      EXPECT_EQ(pool.reference_count(new_place[static_cast<size_t>(held[i])]), counts_before[i]);
    }
  }
}

}  // namespace
}  // namespace tandem::rollout
