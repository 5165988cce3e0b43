#include "tests/rollout/engine_fixture.h"

#include <gtest/gtest.h>

#include <random>

#include "model/registry.h"
#include "tests/model/families.h"
#include "tests/model/random_weights.h"

namespace tandem::rollout {

const device::Ops& test_ops(int num_threads) {
  static std::map<int, std::unique_ptr<device::Ops>> ops_by_threads;
  std::unique_ptr<device::Ops>& ops = ops_by_threads[num_threads];
  if (ops == nullptr) ops = device::make_cpu_ops("auto", num_threads);
  return *ops;
}

namespace {

// Wide enough for logits that differ by several units.
constexpr double kInitializerRange = 0.2;

TestModel with_store(const model::ModelConfig& config, at::ScalarType dtype) {
  TestModel m;
  m.config = config;
  m.store = std::make_unique<weights::WeightStore>(model::build_layout(config), dtype);
  return m;
}

}  // namespace

void TestModel::change_weights(uint64_t seed) {
  weights::initialize_random(*store, kInitializerRange, seed);
  store->publish();
}

TestModel make_small_model(at::ScalarType dtype, int num_threads, const std::string& architecture) {
  model::ModelConfig config;
  config.hidden = 48;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.mlp = 80;
  config.vocab = 64;
  config.max_positions = 256;
  config.eos_token_ids = {1};
  config.dtype = dtype == at::kFloat ? model::Dtype::kFloat32 : model::Dtype::kBFloat16;
  TestModel m = with_store(model::in_family(config, architecture), dtype);
  model::draw_weights(*m.store, kInitializerRange, 3);
  m.model = model::make_model(m.config, m.store->view(), test_ops(num_threads));
  return m;
}

TestModel load_model(const std::string& directory) {
  TestModel m = with_store(model::read_model_config(directory), at::kFloat);
  weights::load_hf_checkpoint(directory, *m.store);
  m.model = model::make_model(m.config, m.store->view(), test_ops());
  return m;
}

std::vector<int32_t> random_prompt(uint32_t seed, int64_t length) {
  std::mt19937 random(seed);
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 64);
  return prompt;
}

std::map<uint64_t, rl::Group> finish_all(Engine& engine) {
  std::map<uint64_t, rl::Group> groups;
  while (std::optional<rl::Group> group = engine.next_finished()) {
    const uint64_t id = group->group_id;
    EXPECT_TRUE(groups.emplace(id, std::move(*group)).second) << "group " << id << " came twice";
  }
  EXPECT_EQ(engine.num_unfinished_groups(), 0);
  return groups;
}

rl::Group run_alone(model::Model& model, const GroupRequest& request, const EngineConfig& config) {
  const std::unique_ptr<Engine> engine = make_engine(config, model);
  engine->add(request);
  return finish_all(*engine).at(request.group_id);
}

void expect_same_completion(const rl::Completion& a, const rl::Completion& b) {
  EXPECT_EQ(a.sample_id, b.sample_id);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.logprobs, b.logprobs);
  EXPECT_EQ(a.behavior_logprobs, b.behavior_logprobs);
  EXPECT_EQ(a.finish_reason, b.finish_reason);
}

void expect_same_group(const rl::Group& a, const rl::Group& b) {
  EXPECT_EQ(a.prompt, b.prompt);
  ASSERT_EQ(a.completions.size(), b.completions.size());
  for (size_t i = 0; i < a.completions.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "group " << a.group_id << ", completion " << i);
    expect_same_completion(a.completions[i], b.completions[i]);
  }
}

}  // namespace tandem::rollout
