// Tests of which rank owns which rows: whole blocks, every one of them once, and no block that depends on the number of
// ranks.
#include "trainer/shard.h"

#include <gtest/gtest.h>

#include <random>

#include "tandem/error.h"

namespace tandem::trainer {
namespace {

TEST(Shard, RanksOwnEveryRowOnceInWholeBlocks) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    std::vector<int64_t> shape = {1 + static_cast<int64_t>(random() % 3000)};
    if (random() % 4 != 0) shape.push_back(1 + static_cast<int64_t>(random() % 5000));
    const int64_t block = rows_of_block(shape);
    EXPECT_GE(block * elements_of_row(shape), 4096);
    EXPECT_EQ(block * elements_of_row(shape) * 2 % 64, 0) << "a bfloat16 block's beginning is aligned";
    for (const int size : {1, 2, 3, 4, 8, 100}) {
      int64_t next = 0, blocks = 0, least = num_blocks(shape), most = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Shard shard{.rank = rank, .size = size};
        const Rows rows = rows_of(shape, shard);
        EXPECT_EQ(rows.begin, next);
        EXPECT_TRUE(rows.begin % block == 0 || rows.count() == 0);
        EXPECT_EQ((rows.count() + block - 1) / block, num_blocks(shape, shard));
        EXPECT_EQ(elements_of(shape, shard), rows.count() * elements_of_row(shape));
        least = std::min(least, num_blocks(shape, shard));
        most = std::max(most, num_blocks(shape, shard));
        blocks += num_blocks(shape, shard);
        next = rows.end;
      }
      EXPECT_EQ(next, shape.front());
      EXPECT_EQ(blocks, num_blocks(shape));
      EXPECT_LE(most, least + 1);
    }
  }
}

TEST(Shard, BucketsAreLayersAndWhatIsOutside) {
  weights::Layout layout;
  for (const char* name : {"embed", "layers.0.qkv", "layers.0.o", "layers.11.qkv.lora_a", "final_norm"})
    layout.tensors.push_back({.name = name, .shape = {10, 7}, .slices = {}});
  const Buckets buckets = buckets_of(layout);
  ASSERT_EQ(buckets.layers.size(), 12U);
  ASSERT_EQ(buckets.outer.members.size(), 2U);
  EXPECT_EQ(buckets.outer.members[1].tensor, 4U);
  EXPECT_EQ(buckets.outer.members[1].first_element, 80) << "at a multiple of 64 bytes";
  ASSERT_EQ(buckets.of(0).members.size(), 2U);
  EXPECT_EQ(buckets.of(0).members[1].tensor, 2U);
  EXPECT_EQ(buckets.largest_layer(), 160);
  EXPECT_EQ(buckets.of(11).num_elements, 80);
  EXPECT_TRUE(buckets.of(5).members.empty());
  EXPECT_TRUE(buckets.of(20).members.empty());
  EXPECT_THROW(bucket_of("layers.x.qkv"), BugError);
}

}  // namespace
}  // namespace tandem::trainer
