// A command that only samples gives its keys and values what its sequences need, within what the device has left.
#include "plan/engine_kv.h"

#include <gtest/gtest.h>

#include "plan/kv_size.h"
#include "tests/plan/plan_case.h"

namespace tandem::plan {
namespace {

// Qwen3-4B's shape.
model::ModelConfig model_of_4b() {
  model::ModelConfig model = model::in_family(model::tiny_config(), "Qwen3ForCausalLM");
  model.num_layers = 36;
  model.hidden = 2560;
  model.mlp = 9728;
  model.num_heads = 32;
  model.num_kv_heads = 8;
  model.head_dim = 128;
  model.vocab = 151'936;
  model.max_positions = 40'960;
  model.dtype = model::Dtype::kBFloat16;
  return model;
}

int64_t kv_on(int64_t free_bytes, const EngineNeeds& needs, int64_t flag = 0) {
  config::ModelOptions options;
  options.device = "cuda";
  options.num_threads = 1;
  config::RolloutOptions rollout;
  rollout.kv_cache_bytes = flag;
  rollout.fill_in(options.device);
  return engine_kv_bytes(options, rollout, model_of_4b(), needs, device::DeviceBytes{free_bytes, free_bytes});
}

TEST(EngineKv, TakesWhatTheDeviceHasLeft) {
  constexpr EngineNeeds kLong = {.sequences = 64, .context_tokens = 32'768};  // 288 GiB of keys and values
  const int64_t on_h200 = kv_on(139 * kGiB, kLong), on_a10 = kv_on(22 * kGiB, kLong);
  EXPECT_GT(on_h200, 110 * kGiB);
  EXPECT_LT(on_h200, (139 * 9 / 10 - 7) * kGiB) << "the weights are 7.5 GiB, and a tenth stays free";
  EXPECT_GT(on_a10, 8 * kGiB);
  EXPECT_LT(on_a10, 13 * kGiB);
  EngineNeeds with_judge = kLong;
  with_judge.other_bytes = 15 * kGiB;
  EXPECT_NEAR(static_cast<double>(on_h200 - kv_on(139 * kGiB, with_judge)), 0.9 * 15 * kGiB, 1.0 * kGiB);
}

TEST(EngineKv, TakesNoMoreThanTheSequencesNeed) {
  const int64_t one = kv_on(139 * kGiB, {.sequences = 1, .context_tokens = 1024});
  EXPECT_GE(one, 1024 * 147'456);
  EXPECT_LE(one, 1024 * 147'456 * 5 / 4);
  EXPECT_EQ(kv_on(139 * kGiB, {.sequences = 8, .context_tokens = 1024}), 8 * one);
  EXPECT_LE(kv_on(139 * kGiB, {.sequences = 1, .context_tokens = 64}), one / 8)
      << "whatever a completion is by default";
  EXPECT_EQ(kv_on(kGiB, {.sequences = 8, .context_tokens = 1024}), one) << "where nothing is left, one at a time";
  EXPECT_EQ(kv_on(139 * kGiB, {.sequences = 8, .context_tokens = 1024}, 3 * kGiB), 3 * kGiB);
}

TEST(EngineKv, OfTheHostStaysWithinAGiB) {
  config::ModelOptions options;
  const config::RolloutOptions rollout;
  EXPECT_EQ(engine_kv_bytes(options, rollout, model_of_4b(), {.sequences = 256, .context_tokens = 1024}, std::nullopt),
            kMaxAutomaticKvBytes);
}

}  // namespace
}  // namespace tandem::plan
