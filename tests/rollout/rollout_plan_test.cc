// The byte arithmetic of KV blocks.
#include "rollout/rollout_plan.h"

#include <gtest/gtest.h>

#include "tandem/error.h"

namespace tandem::rollout {
namespace {

TEST(RolloutPlan, CountsBlocksOfAllLayers) {
  model::ModelConfig config;  // Qwen3-0.6B: 114,688 bytes of KV a token in bfloat16
  config.num_layers = 28;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  EXPECT_EQ(kv_block_bytes(config, 2), 16 * 114688);
  EXPECT_EQ(num_kv_blocks(config, 2, 16 * 114688), 1);
  EXPECT_EQ(num_kv_blocks(config, 2, int64_t{1} << 30), 585);
  EXPECT_THROW(num_kv_blocks(config, 2, 16 * 114688 - 1), UserError);
  EXPECT_LT(num_kv_blocks(config, 2, int64_t{1} << 60) * 16, int64_t{1} << 31);  // slots are 32-bit
}

}  // namespace
}  // namespace tandem::rollout
