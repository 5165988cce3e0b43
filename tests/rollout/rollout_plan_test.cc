// Tests of the byte arithmetic of KV blocks.
#include "rollout/rollout_plan.h"

#include <gtest/gtest.h>

#include "device/backends.h"
#include "rollout/kv_layout.h"
#include "tandem/error.h"
#include "tests/model/small_models.h"

namespace tandem::rollout {
namespace {

TEST(RolloutPlan, CountsBlocksOfAllLayers) {
  model::ModelConfig config;  // Qwen3-0.6B: 114,688 bytes of KV a token in bfloat16
  config.num_layers = 28;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  EXPECT_EQ(kv_block_bytes(config), 16 * 114688);
  EXPECT_EQ(num_kv_blocks(config, 16 * 114688), 1);
  EXPECT_EQ(num_kv_blocks(config, int64_t{1} << 30), 585);
  EXPECT_THROW(num_kv_blocks(config, 16 * 114688 - 1), UserError);
  EXPECT_LT(num_kv_blocks(config, int64_t{1} << 60) * 16, int64_t{1} << 31);  // slots are 32-bit
}

TEST(KvLayout, BlocksOfLayersWithAndWithoutAWindowAreEquallyLarge) {
  model::ModelConfig config;  // OLMo 3 7B: a window in three of four layers
  config.num_layers = 32;
  config.num_kv_heads = 32;
  config.head_dim = 128;
  config.attention.assign(4, {.window = 4096});
  config.attention.back().window = 0;
  const KvLayout layout = kv_layout(config);
  ASSERT_EQ(layout.kinds.size(), 2U);
  EXPECT_EQ(layout.kinds[0].tokens, 48);
  EXPECT_EQ(layout.kinds[0].window, 0);
  EXPECT_EQ(layout.kinds[1].tokens, 16);
  EXPECT_EQ(layout.kinds[1].window, 4096);
  const int64_t of_layer = 2 * 32 * 128 * 16;
  EXPECT_EQ(layout.block_size, 24 * of_layer);
  EXPECT_EQ(layout.tile_sizes[0], 8 * of_layer);
  EXPECT_EQ(layout.tile_sizes[1], 24 * of_layer);
  EXPECT_EQ(layout.layers[7].kind, 0U);
  EXPECT_EQ(layout.layers[7].index, 1);
  EXPECT_EQ(layout.layers[8].kind, 1U);
  EXPECT_EQ(layout.layers[8].index, 6);
  EXPECT_EQ(kv_tokens(config, 8), 96) << "48 tokens take four blocks";
}

TEST(KvLayout, BlocksOfTheLargerKindAreAMultipleOfTheOthersTiles) {
  model::ModelConfig config;  // Gemma 3 1B: four of 26 layers have no window
  config.num_layers = 26;
  config.num_kv_heads = 1;
  config.head_dim = 256;
  config.attention.assign(6, {.window = 512});
  config.attention.back().window = 0;
  const int64_t of_layer = 2 * 256 * 16;
  KvLayout layout = kv_layout(config);
  EXPECT_EQ(layout.kinds[0].tokens, 80);
  EXPECT_EQ(layout.block_size, 5 * layout.tile_sizes[0]);
  EXPECT_GE(layout.tile_sizes[0], 4 * of_layer);
  EXPECT_GE(layout.block_size, 22 * of_layer);
  EXPECT_LT(layout.block_size, 22 * of_layer + 5 * 64);
  // All blocks are equally large, so one for fewer layers holds more positions. Here these are the layers with a
  // window.
  config.attention.assign(3, {});
  config.attention.back().window = 512;
  layout = kv_layout(config);
  EXPECT_EQ(layout.kinds[0].tokens, 16) << "18 layers";
  EXPECT_EQ(layout.kinds[1].tokens, 32) << "8 layers";
}

TEST(RolloutPlan, SumsOfAnEngineStepByHand) {
  model::ModelConfig config = model::tiny_config(/*num_layers=*/6, model::Dtype::kBFloat16);
  config.tied_embeddings = false;
  memory::TagBytes standing;
  standing[memory::Tag::kKv] = 77;
  memory::MemoryPlan plan;
  add_engine_peaks(
      config,
      {.max_batch_tokens = 100, .max_running = 8, .context_tokens = 33, .footprint = device::footprint_of("cpu")},
      standing, plan);
  const auto bytes = [&](memory::Tag tag) { return plan.bytes(tag, memory::Phase::kRollout); };
  EXPECT_EQ(bytes(memory::Tag::kKv), 77);
  EXPECT_EQ(bytes(memory::Tag::kBatch), 0) << "they are the engine's scratch";
  // A row has the block's input; q 64, k and v 64, attn_out 64, middle 32, gate_up 192, their product 96, down's and
  // the sum 64. A step has nine draws of 64 bytes, 3 * 100 + 9 indices; 3 * 9 results, twice.
  const int64_t step_tensors = 2048 + 2 * 512;
  EXPECT_EQ(bytes(memory::Tag::kEngineScratch),
            step_tensors + 100 * (32 + 64 + 64 + 64 + 32 + 192 + 96 + 64) * 2 + memory::rounding_of(12));
  EXPECT_EQ(logits_window_rows(151936), 55);
  EXPECT_EQ(logits_window_rows(int64_t{1} << 24), 1);
}

TEST(RolloutPlan, SharedExpertsTakeTheirExchangeAndTheRowsOfAllRanks) {
  EXPECT_EQ(most_shared_rows({.max_batch_tokens = 2048, .max_running = 30}), 32);
  EXPECT_EQ(most_shared_rows({.max_batch_tokens = 6, .max_running = 30}), 8);
  EXPECT_EQ(most_shared_rows({.max_batch_tokens = 4096, .max_running = 4096}), 512);
  model::ModelConfig config = model::tiny_config(/*num_layers=*/6, model::Dtype::kBFloat16);
  config.experts = model::ExpertsConfig{.count = 16, .chosen = 4, .width = 32};
  const auto bytes_on = [&](const char* device, int64_t ranks) {
    memory::MemoryPlan plan;
    add_engine_peaks(config,
                     {.max_batch_tokens = 1024,
                      .max_running = 30,
                      .context_tokens = 33,
                      .sharing_ranks = ranks,
                      .shared_rows = 32,
                      .footprint = device::footprint_of(device)},
                     {}, plan);
    return std::pair(plan.bytes(memory::Tag::kOverhead, memory::Phase::kRollout),
                     plan.bytes(memory::Tag::kEngineScratch, memory::Phase::kRollout));
  };
  EXPECT_EQ(bytes_on("cpu", 2).first, 0);
  // Flags of 128 blocks for 8 ranks in two kernels; the own rows, and the results of all places.
  EXPECT_EQ(bytes_on("cuda", 2).first, 2 * 128 * 8 * 4 + 32 * (1 + 2 * 4) * config.hidden * 2);
  // With two ranks a step has no more rows than a prefill: only those that travel are added.
  EXPECT_EQ(bytes_on("cpu", 2).second - bytes_on("cpu", 1).second, 64 * (1 + 2 * 4) * config.hidden * 2);
  EXPECT_GT(bytes_on("cpu", 64).second - bytes_on("cpu", 1).second, 2048 * (1 + 2 * 4) * config.hidden * 2);
}

}  // namespace
}  // namespace tandem::rollout
