// Checks the operations of a forward against figures worked out by hand.
#include "session/trainer_setup.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem::session {
namespace {

rl::Sample sample_of(uint64_t group, const rl::SharedPrompt& prompt, size_t completion) {
  rl::Sample sample;
  sample.group_id = group;
  sample.prompt = prompt;
  sample.completion.assign(completion, 2);
  return sample;
}

double flops_of(const model::ModelConfig& config, const std::vector<rl::Sample>& samples) {
  std::vector<const rl::Sample*> pointers;
  for (const rl::Sample& sample : samples) pointers.push_back(&sample);
  return forward_flops(config, pointers);
}

TEST(ForwardFlops, CountASharedPromptOnce) {
  model::ModelConfig config;
  config.architecture = "Qwen3ForCausalLM";
  config.hidden = 8;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 3;
  config.mlp = 16;
  config.vocab = 100;
  config.num_layers = 5;
  const rl::SharedPrompt prompt = rl::make_prompt(std::vector<int32_t>(10, 1));
  // A layer has query, key, value and output projections, then gate, up and down.
  const double layer = 8 * (12 + 6 + 6 + 12) + 3 * 8 * 16;
  const auto rows = [&](double tokens) { return 2 * tokens * layer * 5; };
  const auto head = [&](double tokens) { return 2 * tokens * 8 * 100; };
  // Attention has two products of half a square.
  const auto attention = [&](double squares) { return 2 * squares * 12 * 5; };
  EXPECT_DOUBLE_EQ(flops_of(config, {sample_of(0, prompt, 3)}), rows(13) + head(3) + attention(13 * 13));
  EXPECT_DOUBLE_EQ(flops_of(config, {sample_of(0, prompt, 3), sample_of(0, prompt, 4)}),
                   rows(10 + 3 + 4) + head(7) + attention(13 * 13 + 14 * 14 - 10 * 10));
  EXPECT_DOUBLE_EQ(flops_of(config, {sample_of(0, prompt, 3), sample_of(1, prompt, 4)}),
                   rows(27) + head(7) + attention(13 * 13 + 14 * 14))
      << "two groups";
  // A backward has the products of a forward twice; with an adapter it has those with frozen weights once.
  const std::vector<rl::Sample> one = {sample_of(0, prompt, 3)};
  const std::vector<const rl::Sample*> batch = {one.data()};
  EXPECT_DOUBLE_EQ(training_flops(config, batch), 3 * flops_of(config, one));
  config.lora = {.rank = 2, .alpha = 4.0, .target_modules = {"q_proj"}};
  EXPECT_DOUBLE_EQ(training_flops(config, batch), 2 * (rows(13) + head(3)) + 3 * attention(13 * 13));
  config.lora->saved_modules = {"embed_tokens"};
  EXPECT_DOUBLE_EQ(training_flops(config, batch), 2 * (rows(13) + head(3)) + 3 * attention(13 * 13));
  config.tied_embeddings = true;
  EXPECT_DOUBLE_EQ(training_flops(config, batch), 2 * rows(13) + 3 * (head(3) + attention(13 * 13)));
}

}  // namespace
}  // namespace tandem::session
