// Tests of reference-counted blocks: lowest first, shared, never leaked.
#include "rollout/kv_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
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

TEST(BlockPool, KeepsCountsUnderAnyOrderOfCalls) {
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
    const std::set<int32_t> used(held.begin(), held.end());
    EXPECT_EQ(pool.num_used(), static_cast<int64_t>(used.size()));
    for (const int32_t block : used)
      EXPECT_EQ(pool.reference_count(block), std::count(held.begin(), held.end(), block));
  }
}

}  // namespace
}  // namespace tandem::rollout
