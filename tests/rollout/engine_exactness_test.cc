// Tests that a completion's bits depend on its prompt, parameters, sample id and weights alone, and that its log-probs
// are those of one forward over the whole sequence.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "rollout/kv_layout.h"
#include "tests/model/families.h"
#include "tests/rollout/engine_fixture.h"

namespace tandem::rollout {
namespace {

struct Case {
  std::string architecture;
  at::ScalarType dtype;
  int64_t num_layers = 2;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.architecture << ' ' << c.dtype << ", layers " << c.num_layers;
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  return info.param.architecture + (info.param.num_layers > 2 ? "_mixed" : "") +
         (info.param.dtype == at::kFloat ? "_float32" : "_bfloat16");
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const std::string& architecture : model::kArchitectures)
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) result.push_back({architecture, dtype});
  // Two of six layers have no window, and KV blocks of their own: of two tiles.
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) result.push_back({"Gemma3ForCausalLM", dtype, 6});
  return result;
}

std::vector<Case> cases_in_flight() {
  std::vector<Case> result = cases();
  std::erase_if(result, [](const Case& c) { return c.dtype == at::kFloat && c.architecture != "Qwen3ForCausalLM"; });
  return result;
}

class EngineExactness : public testing::TestWithParam<Case> {
 protected:
  at::ScalarType dtype() const { return GetParam().dtype; }
  TestModel make_model(int num_threads = 1) const {
    return make_small_model(dtype(), num_threads, GetParam().architecture, GetParam().num_layers);
  }
};

// Returns groups of every kind: greedy and sampled, cut and uncut, prompts on both sides of a block's end.
std::vector<GroupRequest> random_requests(uint32_t seed, int64_t num_groups) {
  std::mt19937 random(seed);
  std::vector<GroupRequest> requests;
  for (int64_t g = 0; g < num_groups; ++g) {
    GroupRequest request;
    request.group_id = static_cast<uint64_t>(g);
    const int64_t lengths[] = {1, 5, 15, 16, 17, 32, 40};
    request.prompt = random_prompt(static_cast<uint32_t>(random()), lengths[random() % 7]);
    const uint64_t num_samples = 1 + random() % 5;
    for (uint64_t i = 0; i < num_samples; ++i) request.sample_ids.push_back(request.group_id * 10 + i);
    const double temperatures[] = {0.0, 0.7, 1.0, 1.0};
    request.sampling.temperature = temperatures[random() % 4];
    if (random() % 3 == 0) request.sampling.top_p = 0.9;
    if (random() % 4 == 0) request.sampling.top_k = 20;
    request.sampling.max_new_tokens = 1 + static_cast<int64_t>(random() % 60);
    request.sampling.ignore_eos = random() % 3 != 0;
    request.sampling.seed = 7;
    requests.push_back(request);
  }
  return requests;
}

// Other sequences in flight could change a completion through a family's layers or through the kernels of a dtype. Each
// family runs in bfloat16, in which models are trained, and one in float32; tests/device asks the kernels in both.
class EngineInFlight : public EngineExactness {};

TEST_P(EngineInFlight, ChangesNoBitOfACompletion) {
  const TestModel m = make_model();
  const TestModel on_two_threads = make_model(2);
  EngineStats total;
  // A sequence that gives up the blocks before its window holds no more of them as it grows, so few are preempted.
  const std::vector<BlockKind> kinds = kv_layout(m.model->config()).kinds;
  const bool gives_blocks_up = std::ranges::any_of(kinds, [](const BlockKind& kind) { return kind.window > 0; });
  const uint32_t num_seeds = gives_blocks_up ? 10 : 6;
  for (uint32_t seed = 1; seed <= num_seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::vector<GroupRequest> requests = random_requests(seed, 6);
    std::map<uint64_t, rl::Group> alone;
    for (const GroupRequest& request : requests) alone[request.group_id] = run_alone(*m.model, request);

    std::mt19937 random(seed);
    for (int variant = 0; variant < 3; ++variant) {
      SCOPED_TRACE(testing::Message() << "variant " << variant);
      EngineConfig config;
      config.limits.max_batch_tokens = 1 + static_cast<int64_t>(random() % 70);
      config.limits.max_running = 1 + static_cast<int64_t>(random() % 20);
      config.num_kv_blocks = num_blocks_for(m.model->config(), 100) + static_cast<int64_t>(random() % 12);
      const bool two_threads = variant == 0 && seed % 3 == 1;
      const std::unique_ptr<Engine> engine = make_engine(config, two_threads ? *on_two_threads.model : *m.model);
      std::shuffle(requests.begin(), requests.end(), random);
      for (const GroupRequest& request : requests) {
        engine->add(request);
        for (uint32_t steps = random() % 6; steps > 0; --steps) engine->step();
      }
      const auto together = finish_all(*engine);
      for (const GroupRequest& request : requests) {
        expect_same_group(together.at(request.group_id), alone.at(request.group_id));
      }
      if (HasFailure()) return;
      total.preemptions += engine->stats().preemptions;
      total.copies_on_write += engine->stats().copies_on_write;
      total.recomputed_tokens += engine->stats().recomputed_tokens;
    }
  }
  // The variants reach the cases that they are meant to test.
  EXPECT_GT(total.preemptions, 10);
  EXPECT_GT(total.copies_on_write, 20);
  EXPECT_GT(total.recomputed_tokens, 100);
}

TEST_P(EngineExactness, LogprobsAreThoseOfOneForward) {
  const TestModel m = make_model();
  const std::unique_ptr<Engine> engine = make_engine({}, *m.model);
  const std::vector<GroupRequest> requests = random_requests(11, 12);
  for (const GroupRequest& request : requests) engine->add(request);
  int64_t num_tokens = 0;
  for (const auto& [id, group] : finish_all(*engine)) {
    const rl::SamplingParams& sampling = requests[id].sampling;
    for (const rl::Completion& completion : group.completions) {
      SCOPED_TRACE(testing::Message() << "sample " << completion.sample_id);
      const double temperature = sampling.temperature == 0.0 ? 1.0 : sampling.temperature;
      EXPECT_EQ(completion.logprobs, score(*m.model, group.prompt->tokens, completion.tokens, temperature));
      num_tokens += static_cast<int64_t>(completion.tokens.size());
      EXPECT_EQ(completion.behavior_logprobs.size(), sampling.truncates() ? completion.tokens.size() : 0);
      for (size_t t = 0; t < completion.behavior_logprobs.size(); ++t) {
        EXPECT_GE(completion.behavior_logprobs[t], completion.logprobs[t] - 1e-5F) << "token " << t;
      }
    }
  }
  EXPECT_GT(num_tokens, 300);
}

INSTANTIATE_TEST_SUITE_P(Models, EngineExactness, testing::ValuesIn(cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Models, EngineInFlight, testing::ValuesIn(cases_in_flight()), name_of);

}  // namespace
}  // namespace tandem::rollout
