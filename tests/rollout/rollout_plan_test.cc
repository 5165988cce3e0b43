// Tests of the byte arithmetic of KV blocks.
#include "rollout/rollout_plan.h"

#include <gtest/gtest.h>

#include "device/backends.h"
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

}  // namespace
}  // namespace tandem::rollout
