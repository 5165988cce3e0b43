// The arithmetic of the trainer's memory plan.
#include "trainer/trainer_plan.h"

#include <gtest/gtest.h>

namespace tandem::trainer {
namespace {

model::ModelConfig small() {
  model::ModelConfig config;
  config.architecture = "Qwen3ForCausalLM";
  config.hidden = 32;
  config.num_layers = 6;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.mlp = 96;
  config.vocab = 512;
  config.tied_embeddings = true;
  return config;
}

TEST(TrainerPlan, AFloat32StoreNeedsNoMaster) {
  const int64_t one = small().num_parameters() * 4;
  EXPECT_EQ(optimizer_bytes(small(), model::Dtype::kFloat32).total(), 3 * one);
  EXPECT_EQ(optimizer_bytes(small(), model::Dtype::kBFloat16).total(), 4 * one);
}

TEST(TrainerPlan, RecomputesTheFewestBlocksThatFit) {
  const auto bytes = [](int64_t recomputed) {
    return activation_bytes(small(), model::Dtype::kBFloat16, 1000, recomputed);
  };
  const auto chosen = [](int64_t budget) {
    return recomputed_layers_for(small(), model::Dtype::kBFloat16, 1000, budget);
  };
  EXPECT_EQ(chosen(0), 0) << "0 is no limit";
  for (int64_t n = 0; n < 5; ++n) {
    EXPECT_LT(bytes(n + 1), bytes(n));
    EXPECT_EQ(chosen(bytes(n)), n);
    EXPECT_EQ(chosen(bytes(n) - 1), n + 1);
  }
  EXPECT_EQ(bytes(6), bytes(5)) << "the block that is re-run has a graph";
  EXPECT_EQ(chosen(1), 6);
}

}  // namespace
}  // namespace tandem::trainer
