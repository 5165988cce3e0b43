// Sizes are exact or refused: no configuration whose values are each within bounds adds up to a number that has left 64
// bits. All bounds of config.json at once once gave a plan of -8790885666142552064 bytes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/size.h"
#include "config/rollout_options.h"
#include "model/registry.h"
#include "plan/kv_size.h"
#include "tests/base/thrown.h"
#include "tests/plan/plan_case.h"
#include "weights/weights_plan.h"

namespace tandem::plan {
namespace {

using memory::Phase;
using memory::Tag;

constexpr uint32_t kSeed = 12;
constexpr int64_t kMaxParameters = int64_t{1} << 44;  // of config.json

// The number has any magnitude up to the bound, and often it is the bound itself.
int64_t up_to(std::mt19937& random, int64_t bound) {
  if (random() % 8 == 0) return bound;
  std::uniform_real_distribution<double> exponent(0.0, std::log2(static_cast<double>(bound)));
  return std::clamp<int64_t>(static_cast<int64_t>(std::exp2(exponent(random))), 1, bound);
}

model::ModelConfig draw_model(std::mt19937& random) {
  model::ModelConfig model =
      model::tiny_config(2, random() % 2 == 0 ? model::Dtype::kFloat32 : model::Dtype::kBFloat16);
  model.hidden = up_to(random, int64_t{1} << 20);
  model.num_layers = up_to(random, random() % 8 == 0 ? int64_t{1} << 12 : 64);  // many take long
  model.num_kv_heads = up_to(random, int64_t{1} << 14);
  model.num_heads = model.num_kv_heads * up_to(random, (int64_t{1} << 14) / model.num_kv_heads);
  model.head_dim = 2 * up_to(random, int64_t{1} << 11);
  model.mlp = up_to(random, int64_t{1} << 22);
  model.vocab = up_to(random, int64_t{1} << 24);
  model.max_positions = up_to(random, base::kMaxCount);
  model.tied_embeddings = random() % 2 == 0;
  return model;
}

config::TrainConfig draw_config(std::mt19937& random, const model::ModelConfig& model) {
  config::TrainConfig config = tiny_config();
  const auto count = [&] { return random() % 2 == 0 ? up_to(random, base::kMaxCount) : up_to(random, 4096); };
  config.model.device = random() % 2 == 0 ? "cpu" : "cuda";
  config.rollout_batch_size = count();
  config.rollout.n_samples_per_prompt = count();
  config.rollout.max_response_len = count();
  config.rollout.max_context_len = std::min(model.max_positions, count());
  config.rollout.limits.max_batch_tokens = count();
  config.rollout.limits.max_running = count();
  config.rollout.kv_cache_bytes = random() % 2 == 0 ? 0 : up_to(random, base::kMaxBytes);
  config.optimizer.batch.max_tokens_per_gpu = count();
  config.optimizer.batch.logprob_chunk_rows = count();
  config.loss.use_kl_loss = random() % 2 == 0;
  config.memory.device_memory_bytes = random() % 2 == 0 ? 0 : up_to(random, base::kMaxBytes);
  config.data.max_prompt_len = count();
  return config;
}

__int128 product(const std::vector<int64_t>& shape) {
  __int128 elements = 1;
  for (const int64_t dim : shape) elements *= dim;
  return elements;
}

TEST(Sizes, UpToEveryBoundAreExactOrRefused) {
  std::mt19937 random(kSeed);
  int planned = 0, refused = 0, too_large = 0;
  for (int i = 0; i < 60; ++i) {
    const model::ModelConfig model = draw_model(random);
    const config::TrainConfig config = draw_config(random, model);
    SCOPED_TRACE(fmt::format("case {} of seed {}", i, kSeed));
    const weights::Layout layout = model::build_layout(model);
    __int128 parameters = 0, stored = 0;
    const int64_t element = model::dtype_bytes(model.dtype), line = 64 / element;
    for (const weights::PackedTensor& tensor : layout.tensors) {
      parameters += product(tensor.shape);
      stored += (product(tensor.shape) + line - 1) / line * line * element;
    }
    ASSERT_TRUE(model.num_parameters() == parameters);
    if (parameters > kMaxParameters) {  // parse_model_config() refuses it
      ++too_large;
      continue;
    }
    try {
      const TrainPlan plan = plan_training(config, model, {}, device_memory(config, std::nullopt));
      ++planned;
      EXPECT_TRUE(plan.memory.bytes(Tag::kWeights, Phase::kTrain) == stored);
      EXPECT_TRUE(plan.memory.bytes(Tag::kMoments, Phase::kTrain) == parameters * 8 || plan.host_pinned_bytes > 0);
      const __int128 block = static_cast<__int128>(model.num_layers) * 2 * model.num_kv_heads * model.head_dim * 16;
      const __int128 one = ((plan.context_tokens + __int128{15}) / 16 + 1) * block * element;
      EXPECT_TRUE(sequence_kv_bytes(model, config.rollout.limits, plan.context_tokens) == one);
      EXPECT_GE(plan.peak_bytes(), plan.memory.bytes(Phase::kTrain) - (int64_t{4} << 20));
      EXPECT_GE(plan.peak_bytes(), plan.memory.bytes(Tag::kKv, Phase::kRollout));
      for (const Phase phase : {Phase::kLoad, Phase::kRollout, Phase::kTrain}) {
        for (int tag = 0; tag < memory::kNumTags; ++tag) EXPECT_GE(plan.memory.bytes(static_cast<Tag>(tag), phase), 0);
      }
    } catch (const UserError& error) {
      ++refused;
      const std::string what = error.what();
      EXPECT_EQ(what.find('\n'), std::string::npos) << what;
      EXPECT_NE(what.find("--"), std::string::npos) << what;
      EXPECT_EQ(what.find("a size is more"), std::string::npos) << "names nothing: " << what;
    }
  }
  fmt::print("{} planned, {} refused, {} models too large\n", planned, refused, too_large);
  EXPECT_GT(planned, 5);
  EXPECT_GT(refused, 5);
}

std::string refusal(const config::TrainConfig& config, const model::ModelConfig& model) {
  return base::thrown_by([&] { plan_training(config, model, {}, {}); });
}

TEST(Sizes, TheFlagsThatAreTooLargeAreNamed) {
  config::TrainConfig config = tiny_config();
  config.rollout_batch_size = config.rollout.n_samples_per_prompt = base::kMaxCount;
  EXPECT_TRUE(
      refusal(config, model::tiny_config())
          .starts_with("the sizes of this run are more than 64 bits hold: lower --rollout-batch-size 2147483647 "
                       "or --n-samples-per-prompt 2147483647"))
      << refusal(config, model::tiny_config());
  config = tiny_config();
  model::ModelConfig wide = model::qwen3_0_6b();
  wide.hidden = int64_t{1} << 20;
  wide.num_layers = int64_t{1} << 10;
  config.model.hf_checkpoint = "DIR";
  config.rollout_batch_size = base::kMaxCount / 2;
  config.rollout.max_response_len = 40'000;
  config.optimizer.batch.max_tokens_per_gpu = base::kMaxCount;
  config.optimizer.recompute_granularity = "none";
  const std::string what = refusal(config, wide);
  EXPECT_NE(what.find("--max-tokens-per-gpu 2147483647"), std::string::npos) << what;
  EXPECT_NE(what.find("DIR/config.json"), std::string::npos) << what;
  EXPECT_NE(what.find("hidden_size 1048576"), std::string::npos) << what;
}

}  // namespace
}  // namespace tandem::plan
