// Tests of the engine against transformers' greedy continuations.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "device/block.h"
#include "tests/golden/golden.h"
#include "tests/model/families.h"
#include "tests/rollout/engine_fixture.h"
#include "tests/weights/tensor_files.h"

namespace tandem::rollout {
namespace {

struct GoldenSequence {
  std::vector<int32_t> prompt, greedy_ids;
  std::vector<float> greedy_logp;
};

template <typename To, typename From>
std::vector<To> values(const at::Tensor& tensor) {
  const From* data = tensor.const_data_ptr<From>();
  return std::vector<To>(data, data + tensor.numel());
}

std::vector<GoldenSequence> read_sequences(const std::string& name) {
  const auto tensors = weights::read_tensors(golden::directory() + "/reference/" + name + "/reference.safetensors");
  std::vector<GoldenSequence> sequences;
  for (int i = 0; tensors.contains("seq" + std::to_string(i) + ".input_ids"); ++i) {
    const std::string prefix = "seq" + std::to_string(i);
    sequences.push_back({.prompt = values<int32_t, int64_t>(tensors.at(prefix + ".input_ids")),
                         .greedy_ids = values<int32_t, int64_t>(tensors.at(prefix + ".greedy_ids")),
                         .greedy_logp = values<float, float>(tensors.at(prefix + ".greedy_logp"))});
  }
  return sequences;
}

class GoldenEngine : public testing::TestWithParam<std::string> {};

// All sequences run in one batch; then they are prefilled in chunks of an odd size over a cache that does not hold them
// all.
TEST_P(GoldenEngine, ContinuesAsTransformersDoes) {
  const std::vector<GoldenSequence> sequences = read_sequences(GetParam());
  ASSERT_FALSE(sequences.empty());
  const TestModel m = model::load_model(golden::directory() + "/models/" + GetParam(), test_ops());
  size_t longest = 0;
  for (const GoldenSequence& s : sequences) longest = std::max(longest, s.prompt.size() + s.greedy_ids.size());
  const EngineConfig roomy;
  EngineConfig tight;
  tight.limits.max_batch_tokens = 13;
  tight.num_kv_blocks = num_blocks_for(m.model->config(), static_cast<int64_t>(longest) + 1);
  for (const EngineConfig& config : {roomy, tight}) {
    const std::unique_ptr<Engine> engine = make_engine(config, *m.model);
    for (size_t i = 0; i < sequences.size(); ++i) {
      rl::SamplingParams greedy;
      greedy.temperature = 0.0;
      greedy.ignore_eos = true;
      greedy.max_new_tokens = static_cast<int64_t>(sequences[i].greedy_ids.size());
      engine->add(
          {.group_id = i, .prompt = rl::make_prompt(sequences[i].prompt), .sample_ids = {i}, .sampling = greedy});
    }
    const auto groups = finish_all(*engine);
    ASSERT_EQ(groups.size(), sequences.size());
    for (size_t i = 0; i < sequences.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "seq" << i);
      const rl::Completion& completion = groups.at(i).completions.at(0);
      EXPECT_EQ(completion.tokens, sequences[i].greedy_ids);
      EXPECT_EQ(completion.finish_reason, rl::FinishReason::kLength);
      ASSERT_EQ(completion.logprobs.size(), sequences[i].greedy_logp.size());
      for (size_t t = 0; t < completion.logprobs.size(); ++t) {
        EXPECT_NEAR(completion.logprobs[t], sequences[i].greedy_logp[t], 5e-5) << "token " << t;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenEngine, testing::ValuesIn(model::kGoldenModels),
                         [](const auto& info) { return model::as_test_name(info.param); });

}  // namespace
}  // namespace tandem::rollout
