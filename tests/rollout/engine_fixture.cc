#include "tests/rollout/engine_fixture.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <random>

#include "device/block.h"
#include "rollout/kv_cache.h"
#include "rollout/kv_layout.h"
#include "rollout/paged_attention.h"

namespace tandem::rollout {

TestModel make_small_model(at::ScalarType dtype, int num_threads, const std::string& architecture, int64_t num_layers) {
  model::ModelConfig config = model::small_config(num_layers, architecture);
  config.vocab = 64;
  config.tied_embeddings = false;
  config.eos_token_ids = {1};
  config.dtype = dtype == at::kFloat ? model::Dtype::kFloat32 : model::Dtype::kBFloat16;
  return model::random_model(config, test_ops(num_threads));
}

int64_t num_blocks_for(const model::ModelConfig& config, int64_t tokens) {
  return blocks_of(kv_layout(config).kinds, tokens);
}

rl::SharedPrompt random_prompt(uint32_t seed, int64_t length) {
  std::mt19937 random(seed);
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 64);
  return rl::make_prompt(std::move(prompt));
}

GroupRequest request_of(uint64_t group_id, int64_t prompt_tokens, int64_t num_samples, int64_t max_new_tokens) {
  GroupRequest request;
  request.group_id = group_id;
  request.prompt = random_prompt(static_cast<uint32_t>(group_id), prompt_tokens);
  for (int64_t i = 0; i < num_samples; ++i) request.sample_ids.push_back(group_id * 100 + static_cast<uint64_t>(i));
  request.sampling.max_new_tokens = max_new_tokens;
  request.sampling.ignore_eos = true;
  return request;
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

std::vector<float> score(model::Model& model, const std::vector<int32_t>& prompt,
                         const std::vector<int32_t>& completion, double temperature) {
  std::vector<int32_t> ids = prompt;
  ids.insert(ids.end(), completion.begin(), completion.end());
  const auto num_tokens = static_cast<int64_t>(ids.size());
  const int64_t num_blocks = (num_tokens + device::kBlockTokens - 1) / device::kBlockTokens;
  const auto int32 = at::TensorOptions().dtype(at::kInt);
  const size_t num_kinds = kv_layout(model.config()).kinds.size();
  const KvCache cache(model.config(), num_blocks * static_cast<int64_t>(num_kinds),
                      at::TensorOptions().dtype(model.dtype()));
  PagedAttention attention(model.ops(), cache, num_tokens);
  const at::Tensor positions = at::arange(num_tokens, int32);
  std::vector<device::AttentionRows> rows(num_kinds);
  std::vector<at::Tensor> slots;
  for (size_t kind = 0; kind < num_kinds; ++kind) {
    const int64_t first_tile = static_cast<int64_t>(kind) * num_blocks * cache.layout().tiles(kind);
    rows[kind].sequence_of_row = at::zeros({num_tokens}, int32);
    rows[kind].row_position = positions;
    rows[kind].block_table = at::arange(first_tile, first_tile + num_blocks, int32).unsqueeze(0);
    const int64_t first_slot = first_tile * device::kBlockTokens;
    slots.push_back(at::arange(first_slot, first_slot + num_tokens, int32));
  }
  attention.set_batch(rows, slots);
  const c10::NoGradGuard no_grad;
  const at::Tensor hidden = model::forward_hidden(model, at::tensor(ids, int32), positions, attention);
  const auto num_scored = static_cast<int64_t>(completion.size());
  const at::Tensor logits = model.head(hidden.narrow(0, static_cast<int64_t>(prompt.size()) - 1, num_scored));
  const at::Tensor logprobs = at::empty({num_scored}, logits.options());
  const at::Tensor lse = at::empty({num_scored}, logits.options());
  model.ops().logprob(logits, at::tensor(completion, int32), temperature, logprobs, at::Tensor(), lse);
  const float* data = logprobs.const_data_ptr<float>();
  return std::vector<float>(data, data + num_scored);
}

void expect_same_completion(const rl::Completion& a, const rl::Completion& b) {
  EXPECT_EQ(a.sample_id, b.sample_id);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.logprobs, b.logprobs);
  EXPECT_EQ(a.behavior_logprobs, b.behavior_logprobs);
  EXPECT_EQ(a.finish_reason, b.finish_reason);
}

void expect_same_group(const rl::Group& a, const rl::Group& b) {
  EXPECT_EQ(a.prompt->tokens, b.prompt->tokens);
  ASSERT_EQ(a.completions.size(), b.completions.size());
  for (size_t i = 0; i < a.completions.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "group " << a.group_id << ", completion " << i);
    expect_same_completion(a.completions[i], b.completions[i]);
  }
}

}  // namespace tandem::rollout
