// The longest sequence of a run, and the bytes of its keys and values.
#include "plan/kv_size.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "config/train_config.h"
#include "rollout/rollout_plan.h"
#include "tandem/error.h"
#include "tests/base/thrown.h"

namespace tandem::plan {
namespace {

TEST(KvSize, ContextLimitsAreCheckedBeforeWork) {
  model::ModelConfig model;
  model.max_positions = 100;
  config::RolloutOptions options;
  EXPECT_EQ(choose_context_tokens(options, model, 10), 100);  // the default length is cut
  options.max_response_len = 20;
  EXPECT_EQ(choose_context_tokens(options, model, 10), 30);
  EXPECT_THROW(choose_context_tokens(options, model, 90), UserError);
  EXPECT_THROW(choose_context_tokens(options, model, 100), UserError);
  try {
    choose_context_tokens(options, model, 100, "data.jsonl:7");
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("data.jsonl:7: the longest prompt has 100 tokens"))
        << error.what();
  }
  options.max_context_len = 95;
  EXPECT_EQ(choose_context_tokens(options, model, 90), 95);
  options.max_context_len = 101;
  EXPECT_THROW(choose_context_tokens(options, model, 10), UserError);
}

// If an evaluation's own flag is too long, the error does not name the rollout's flag.
TEST(KvSize, ErrorsNameTheFlagThatWasTyped) {
  const auto refused = [](const std::function<void(config::TrainConfig&)>& change, int64_t longest_prompt) {
    config::TrainConfig config;
    change(config);
    model::ModelConfig model;
    model.max_positions = 100;
    return base::thrown_by([&] { choose_context_tokens(config.eval.rollout(config.rollout), model, longest_prompt); });
  };
  using Config = config::TrainConfig;
  const std::vector<std::pair<std::string, std::function<void(Config&)>>> cases = {
      {"--eval-max-response-len 200: ", [](Config& config) { config.eval.max_response_len = 200; }},
      {"--rollout-max-response-len 200: ", [](Config& config) { config.rollout.max_response_len = 200; }},
      {"--eval-max-context-len 200: ", [](Config& config) { config.eval.max_context_len = 200; }},
      {"--rollout-max-context-len 200: ", [](Config& config) { config.rollout.max_context_len = 200; }},
  };
  for (const auto& [says, change] : cases) EXPECT_TRUE(refused(change, 10).starts_with(says)) << refused(change, 10);
  const auto nothing = [](Config&) {};
  EXPECT_TRUE(refused(nothing, 100).ends_with("with --eval-max-prompt-len")) << refused(nothing, 100);
}

TEST(KvSize, CacheHoldsAtLeastOneSequenceAndNoMoreThanNeeded) {
  model::ModelConfig model;
  model.num_layers = 2;
  model.num_kv_heads = 2;
  model.head_dim = 16;
  model.dtype = model::Dtype::kFloat32;
  config::RolloutOptions options;
  const int64_t one = choose_kv_bytes(options, model, 1, 64);
  EXPECT_GE(one, 64 * 2 * 2 * 2 * 16 * 4);
  EXPECT_EQ(choose_kv_bytes(options, model, 10, 64), 10 * one);
  EXPECT_EQ(choose_kv_bytes(options, model, 1'000'000, 64), options.limits.max_running * one);
  options.kv_cache_bytes = one - 1;
  EXPECT_THROW(choose_kv_bytes(options, model, 1, 64), UserError);
  options.kv_cache_bytes = 3 * one;
  EXPECT_EQ(choose_kv_bytes(options, model, 100, 64), 3 * one);
}

// A sequence of a model whose layers all have windows holds what a forward sees and what it computes.
TEST(KvSize, SequencesWithWindowsHoldNoMoreThanAForwardSees) {
  model::ModelConfig model;
  model.num_layers = 3;
  model.num_kv_heads = 2;
  model.head_dim = 16;
  const rollout::BatchLimits limits = {.max_batch_tokens = 100};
  const auto blocks = [&](int64_t tokens) {
    return sequence_kv_bytes(model, limits, tokens) / rollout::kv_block_bytes(model) - 1;  // one is for a copy
  };
  EXPECT_EQ(blocks(4096), 256);
  model.attention.assign(2, {.window = 50});
  model.attention.back().window = 64;
  EXPECT_EQ(blocks(4096), 12) << "63 tokens before the first of 100, and the rest of a block";
  EXPECT_EQ(blocks(120), 8) << "one forward may compute all that the window does not hold";
  EXPECT_EQ(blocks(64), 4);
  // A block of the one layer without a window holds 32 tokens, and a copy of its own kind may be held.
  model.attention.back().window = 0;
  EXPECT_EQ(blocks(4096), 128 + 11 + 1) << "49 tokens before the first of 100, and the rest of a block";
  EXPECT_EQ(blocks(64), 2 + 4 + 1);
}

}  // namespace
}  // namespace tandem::plan
