// Tests of the block-major cache: sizes, layer views, copies on write.
#include "rollout/kv_cache.h"

#include <gtest/gtest.h>

#include <ATen/ops/full_like.h>

namespace tandem::rollout {
namespace {

model::ModelConfig small_config() {
  model::ModelConfig config;
  config.num_layers = 3;
  config.num_kv_heads = 2;
  config.head_dim = 4;
  return config;
}

TEST(KvCache, KeepsAllLayersOfABlockTogether) {
  const KvCache cache(small_config(), 5, at::TensorOptions().dtype(at::kFloat));
  EXPECT_EQ(cache.layer(1).sizes(), (at::IntArrayRef{5, 2, 2, 64}));
  EXPECT_EQ(cache.layer(1).stride(0) * 4, cache.block_bytes());
  EXPECT_TRUE(cache.layer(1).select(0, 0).is_contiguous());
  EXPECT_EQ(cache.block_bytes(), 3 * 2 * 2 * 4 * 16 * 4);
  EXPECT_EQ(cache.bytes(), 5 * cache.block_bytes());
}

TEST(KvCache, CopiesBlocksInOrderAndInAllLayers) {
  KvCache cache(small_config(), 5, at::TensorOptions().dtype(at::kFloat));
  for (int64_t layer = 0; layer < 3; ++layer) {
    for (int64_t block = 0; block < 5; ++block) cache.layer(layer).select(0, block).fill_(10.0 * layer + block);
  }
  cache.copy_blocks({{.from = 1, .to = 4}, {.from = 0, .to = 1}, {.from = 4, .to = 2}});
  for (int64_t layer = 0; layer < 3; ++layer) {
    const int64_t expected[] = {0, 0, 1, 3, 1};
    for (int64_t block = 0; block < 5; ++block) {
      const at::Tensor content = cache.layer(layer).select(0, block);
      EXPECT_TRUE(content.equal(at::full_like(content, 10.0 * layer + expected[block]))) << layer << " " << block;
    }
  }
}

// Whatever is written into a tile of a layer shows nowhere else.
TEST(KvCache, TilesOfLayersWithAndWithoutAWindowDoNotOverlap) {
  model::ModelConfig config = small_config();
  config.num_layers = 7;
  config.attention.assign(4, {.window = 20});
  config.attention.back().window = 0;
  KvCache cache(config, 5, at::TensorOptions().dtype(at::kFloat));
  ASSERT_EQ(cache.layout().kinds[0].tokens, 6 * 16) << "one layer of seven";
  EXPECT_EQ(cache.layer(3).sizes(), (at::IntArrayRef{30, 2, 2, 64}));
  EXPECT_EQ(cache.layer(6).sizes(), (at::IntArrayRef{5, 2, 2, 64}));
  // Blocks 0 and 1 belong to the layer without a window, the others to those that have one.
  const auto number = [](int64_t layer, int64_t tile) { return static_cast<double>(1000 * layer + tile); };
  const auto each_tile = [&](const auto& visit) {
    for (int64_t layer = 0; layer < 7; ++layer) {
      const bool sees_all = layer == 3;
      for (int64_t tile = sees_all ? 0 : 2; tile < (sees_all ? 12 : 5); ++tile) {
        visit(cache.layer(layer).select(0, tile), number(layer, tile));
      }
    }
  };
  each_tile([](const at::Tensor& content, double value) { content.fill_(value); });
  each_tile([](const at::Tensor& content, double value) { EXPECT_TRUE(content.equal(at::full_like(content, value))); });
  cache.copy_blocks({{.from = 0, .to = 4}});
  EXPECT_TRUE(cache.layer(3).select(0, 4 * 6 + 5).equal(cache.layer(3).select(0, 5)));
}

}  // namespace
}  // namespace tandem::rollout
