// Tests of the promise that everything rests on: the trainer's log-probability of every sampled token equals the
// engine's, bit for bit, for any mix of lengths, batch sizes, chunks, shared prefixes, preemptions and threads. They
// draw such mixes from printed seeds; a failure names the operation that broke.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>

#include "device/ops.h"
#include "model/lora.h"
#include "model/model.h"
#include "model/registry.h"
#include "rollout/engine.h"
#include "rollout/kv_layout.h"
#include "tests/device/draw.h"
#include "tests/model/families.h"
#include "tests/model/random_weights.h"
#include "tests/sim/checking_ops.h"
#include "tests/sim/forwarding_ops.h"
#include "trainer/score.h"
#include "trainer/trainer.h"
#include "weights/store.h"

namespace tandem::sim {
namespace {

using device::TestDraw;

constexpr uint64_t kNumSeeds = 110;

model::ModelConfig draw_model(TestDraw& draw, std::optional<int64_t> head_dim) {
  model::ModelConfig config;
  config.num_kv_heads = draw.integer(1, 3);
  config.num_heads = config.num_kv_heads * draw.integer(1, 3);
  config.head_dim = draw.choose<int64_t>({8, 16, 24, 32, 64});
  config.head_dim = head_dim.value_or(config.head_dim);
  config.hidden = draw.choose<int64_t>({16, 32, 40, 64, 96});
  config.mlp = draw.choose<int64_t>({16, 48, 64, 100});
  config.num_layers = draw.integer(1, 3);
  config.vocab = draw.integer(20, 200);
  config.max_positions = 256;
  config.tied_embeddings = draw.integer(0, 1) == 1;
  config.dtype = draw.integer(0, 1) == 1 ? model::Dtype::kBFloat16 : model::Dtype::kFloat32;
  return config;
}

// The families take turns.
const std::string& architecture_of(uint64_t seed) { return model::kArchitectures[seed % model::kArchitectures.size()]; }

// One world: a model, an engine and a trainer with their own threads over one store.
struct Mix {
  model::ModelConfig config;
  rollout::EngineConfig engine;
  trainer::TrainerConfig trainer;
  std::vector<rollout::GroupRequest> requests;
  int engine_threads, trainer_threads;
  std::string isa;

  // head_dim is the model's, where it shall not be drawn.
  Mix(TestDraw& draw, const std::string& architecture, std::optional<int64_t> head_dim = std::nullopt)
      : config(model::in_family(draw_model(draw, head_dim), architecture)) {
    if (config.experts) {
      config.experts->count = draw.choose<int64_t>({4, 6, 16});
      config.experts->chosen = draw.integer(1, 4);
      config.experts->normalises = draw.integer(0, 1) == 1;
    }
    isa = draw.choose<std::string>({"auto", "auto", "auto", "auto", "auto", "auto", "auto", "scalar"});
    engine_threads = static_cast<int>(draw.integer(1, 2));
    trainer_threads = static_cast<int>(draw.integer(1, 2));
    const int64_t num_groups = draw.integer(1, 5);
    rl::SamplingParams sampling;
    sampling.temperature = draw.choose<double>({1.0, 1.0, 0.7, 1.3});
    if (draw.integer(0, 3) == 0) sampling.top_p = 0.8;
    sampling.ignore_eos = true;
    uint64_t sample_id = 0;
    int64_t longest = 0;
    for (int64_t g = 0; g < num_groups; ++g) {
      rollout::GroupRequest request;
      request.group_id = static_cast<uint64_t>(g);
      request.prompt =
          rl::make_prompt(draw.ids(draw.integer(1, draw.choose<int64_t>({4, 20, 60})), 0, config.vocab - 1));
      const int64_t n = draw.integer(1, 5);
      for (int64_t i = 0; i < n; ++i) request.sample_ids.push_back(sample_id++);
      request.sampling = sampling;
      request.sampling.max_new_tokens = draw.integer(1, draw.choose<int64_t>({3, 18, 40}));
      longest =
          std::max(longest, static_cast<int64_t>(request.prompt->tokens.size()) + request.sampling.max_new_tokens);
      requests.push_back(std::move(request));
    }
    // The cache holds anything from barely one sequence (preemption all the time) to all of them.
    engine.num_kv_blocks = 1 + draw.choose<int64_t>({0, 1, 4, 60});
    engine.limits.max_batch_tokens = draw.choose<int64_t>({8, 13, 64, 512});
    engine.limits.max_running = draw.choose<int64_t>({1, 3, 64});
    trainer.batch.max_tokens_per_gpu = draw.choose<int64_t>({16, 100, 4096});
    trainer.batch.logprob_chunk_rows = draw.choose<int64_t>({1, 7, 1024});
    trainer.recompute_layers = draw.integer(0, config.num_layers);
    trainer.temperature = sampling.temperature;
    engine.lookahead = draw.integer(0, 1);
    engine.record_steps = draw.integer(0, 1) == 1;
    // Half of the models with windows have one in each layer: then sequences give up the blocks before it.
    if (config.attention.front().window > 0 && draw.integer(0, 1) == 0) config.attention.pop_back();
    engine.num_kv_blocks += rollout::blocks_of(rollout::kv_layout(config).kinds, longest);
  }

  std::string describe() const {
    std::ostringstream out;
    out << config.architecture << ", " << to_string(config.dtype) << " E " << config.hidden << " L "
        << config.num_layers << " H " << config.num_heads << "/" << config.num_kv_heads << " K " << config.head_dim
        << " F " << config.mlp << " V " << config.vocab << ", isa " << isa << ", threads " << engine_threads << " and "
        << trainer_threads << ", " << requests.size() << " groups, batch " << engine.limits.max_batch_tokens
        << ", running " << engine.limits.max_running << ", blocks " << engine.num_kv_blocks << ", lookahead "
        << *engine.lookahead << (engine.record_steps.value_or(true) ? ", recorded" : "") << ", micro-batch "
        << trainer.batch.max_tokens_per_gpu << ", chunk " << trainer.batch.logprob_chunk_rows;
    return out.str();
  }
};

// A quarter of the widths are no whole vector; the targets leave windows of the packed matrices out.
void add_adapter(TestDraw& draw, model::ModelConfig& config) {
  config.lora = {
      .rank = draw.choose<int64_t>({1, 3, 8, 16}), .alpha = draw.choose<double>({4, 16, 24}), .target_modules = {}};
  for (const std::string& module : model::adaptable_modules(config)) {
    if (draw.integer(0, 3) > 0) config.lora->target_modules.push_back(module);
  }
  if (config.lora->target_modules.empty()) config.lora->target_modules = {"o_proj"};
}

// The outcome of sampling with one engine and scoring with one trainer: the tokens whose log-probs differ, and the
// metrics of the first step.
struct Outcome {
  int64_t tokens = 0, different = 0, preemptions = 0, shared = 0;
  double reported_difference = 0.0, largest_gradient = 0.0;
};

std::vector<rl::Sample> sample_all(rollout::Engine& engine, const Mix& mix) {
  for (const rollout::GroupRequest& request : mix.requests) engine.add(request);
  std::vector<rl::Sample> samples;
  while (std::optional<rl::Group> group = engine.next_finished()) {
    for (rl::Completion& completion : group->completions) {
      rl::Sample sample;
      sample.group_id = group->group_id;
      sample.sample_id = completion.sample_id;
      sample.prompt = group->prompt;
      sample.completion = completion.tokens;
      sample.rollout_logprobs = completion.logprobs;
      sample.loss_mask.assign(completion.tokens.size(), 1);
      sample.advantages.assign(1, sample.sample_id % 2 == 0 ? 1.0 : -0.5);
      sample.versions = completion.versions;
      samples.push_back(std::move(sample));
    }
  }
  std::sort(samples.begin(), samples.end(),
            [](const rl::Sample& a, const rl::Sample& b) { return a.sample_id < b.sample_id; });
  return samples;
}

// The tensors that a configuration trains: random weights, and beside them a random adapter where it has one, B
// included.
struct Policy {
  Policy(const model::ModelConfig& config, at::Device device, uint64_t seed) : base(store_of(config, false, device)) {
    model::draw_weights(base, 0.15, seed);
    if (!config.lora) return;
    adapter.emplace(store_of(config, true, device));
    model::draw_weights(*adapter, 0.15, seed + 1);
  }
  weights::WeightStore& trained() { return adapter ? *adapter : base; }
  weights::WeightsView view() const { return adapter ? base.view().with(adapter->view()) : base.view(); }

  static weights::WeightStore store_of(const model::ModelConfig& config, bool is_adapter, at::Device device) {
    return {is_adapter ? model::adapter_layout(config) : model::build_layout(config),
            config.dtype == model::Dtype::kFloat32 ? at::kFloat : at::kBFloat16, device};
  }
  weights::WeightStore base;
  std::optional<weights::WeightStore> adapter;
};

// Samples, scores and makes an optimizer step, so many times over.
Outcome run(const Mix& mix, const device::Ops& engine_ops, const device::Ops& trainer_ops, uint64_t seed,
            int num_rounds = 1) {
  Policy policy(mix.config, engine_ops.device(), seed);
  const auto engine_model = model::make_model(mix.config, policy.view(), engine_ops);
  const auto trainer_model = model::make_model(mix.config, policy.view(), trainer_ops);
  const auto engine = rollout::make_engine(mix.engine, *engine_model);
  const auto trainer = trainer::make_trainer(mix.trainer, policy.trained(), *trainer_model);

  Outcome outcome;
  for (int round = 0; round < num_rounds; ++round) {
    const std::vector<rl::Sample> samples = sample_all(*engine, mix);
    outcome.preemptions = engine->stats().preemptions;
    outcome.shared = engine->stats().shared_prompt_tokens;
    std::vector<const rl::Sample*> views;
    for (const rl::Sample& sample : samples) views.push_back(&sample);
    const trainer::Scores scores = trainer::score(*trainer_model, views, mix.trainer.batch, mix.trainer.temperature);
    for (size_t i = 0; i < samples.size(); ++i) {
      for (size_t t = 0; t < samples[i].completion.size(); ++t) {
        ++outcome.tokens;
        const float engine_logprob = samples[i].rollout_logprobs[t], trainer_logprob = scores.logprobs[i][t];
        if (std::memcmp(&engine_logprob, &trainer_logprob, sizeof(float)) != 0) ++outcome.different;
      }
    }
    const auto of =
        seed % 2 == 0 ? trainer::RolloutLogprobs::kOfTheseWeights : trainer::RolloutLogprobs::kOfOtherWeights;
    const trainer::Metrics metrics = trainer->step(views, of);
    outcome.reported_difference = std::max(outcome.reported_difference, metrics.at("train_rollout_logprob_abs_diff"));
    outcome.largest_gradient = std::max(outcome.largest_gradient, metrics.at("grad_norm"));
    engine->update_weights(policy.view());
  }
  return outcome;
}

// Runs the mix again with every operation watched.
std::string broken_operation(const Mix& mix, const device::Ops& engine_ops, const device::Ops& trainer_ops,
                             uint64_t seed) {
  RowLedger ledger;
  const auto engine_checked = make_checking_ops(engine_ops, ledger);
  const auto trainer_checked = make_checking_ops(trainer_ops, ledger);
  run(mix, *engine_checked, *trainer_checked, seed);
  return ledger.broken_operation().empty() ? "none: the rows that engine and trainer feed in differ"
                                           : ledger.broken_operation();
}

TEST(OnPolicy, TrainerLogprobsEqualTheEnginesBitForBit) {
  Outcome total;
  for (uint64_t seed = 1; seed <= kNumSeeds; ++seed) {
    TestDraw draw(seed);
    const Mix mix(draw, architecture_of(seed));
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + mix.describe());
    const auto engine_ops = device::make_cpu_ops(mix.isa, mix.engine_threads);
    const auto trainer_ops = device::make_cpu_ops(mix.isa, mix.trainer_threads);
    const Outcome outcome = run(mix, *engine_ops, *trainer_ops, seed);
    total.tokens += outcome.tokens;
    total.preemptions += outcome.preemptions;
    total.shared += outcome.shared;
    ASSERT_EQ(outcome.different, 0) << "of " << outcome.tokens << " log-probs differ; the operation that broke: "
                                    << broken_operation(mix, *engine_ops, *trainer_ops, seed);
    ASSERT_EQ(outcome.reported_difference, 0.0);
  }
  // The mixes reach the cases that they are meant to reach.
  EXPECT_GT(total.tokens, 10000);
  EXPECT_GT(total.preemptions, 50);
  EXPECT_GT(total.shared, 1000);
  std::printf("[   info   ] %lld tokens, %lld preemptions, %lld shared prompt tokens, all equal\n",
              static_cast<long long>(total.tokens), static_cast<long long>(total.preemptions),
              static_cast<long long>(total.shared));
}

// The engine decodes with base and adapter in place, and sees each update of the adapter as it sees one of the weights.
TEST(OnPolicy, TheSameHoldsWithAnAdapterAfterEveryUpdate) {
  constexpr uint64_t kNumAdapterSeeds = 12;
  int64_t tokens = 0;
  for (uint64_t seed = 1; seed <= kNumAdapterSeeds; ++seed) {
    TestDraw draw(1000 + seed);
    Mix mix(draw, seed % 4 == 0 ? "Qwen3MoeForCausalLM" : architecture_of(seed));
    add_adapter(draw, mix.config);
    if (seed % 3 != 0) {  // a base in 4 or 8 bits
      mix.config.dtype = model::Dtype::kBFloat16;
      mix.config.quantisation = seed % 3 == 1 ? device::Quantisation::kNf4 : device::Quantisation::kInt8;
    }
    mix.trainer.schedule.max_lr = 0.05;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + mix.describe());
    const auto engine_ops = device::make_cpu_ops(mix.isa, mix.engine_threads);
    const auto trainer_ops = device::make_cpu_ops(mix.isa, mix.trainer_threads);
    const Outcome outcome = run(mix, *engine_ops, *trainer_ops, seed, /*num_rounds=*/2);
    tokens += outcome.tokens;
    ASSERT_EQ(outcome.different, 0) << "of " << outcome.tokens << " log-probs differ";
    ASSERT_EQ(outcome.reported_difference, 0.0);
    EXPECT_GT(outcome.largest_gradient, 0.0);
  }
  EXPECT_GT(tokens, 1000);
}

class OnPolicyOn : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Modules, OnPolicyOn, testing::ValuesIn(device::device_backends()),
                         [](const auto& info) { return info.param; });

// The same holds on a device, engine and trainer with weights, cache and batches there.
TEST_P(OnPolicyOn, TrainerLogprobsEqualTheEnginesBitForBit) {
  if (!device::why_missing(GetParam()).empty()) GTEST_SKIP() << device::why_missing(GetParam());
  const auto ops = device::make_ops(device::parse_device(GetParam()), {.num_threads = 2});
  constexpr uint64_t kNumDeviceSeeds = 80;
  int64_t tokens = 0, recorded = 0;
  for (uint64_t seed = 1; seed <= kNumDeviceSeeds; ++seed) {
    TestDraw draw(seed);
    // Every other model is one that a GPU has kernels for.
    const bool has_kernels = seed % 2 == 0;
    Mix mix(draw, architecture_of(seed), has_kernels ? std::optional(seed % 4 == 0 ? 64 : 128) : std::nullopt);
    model::ModelConfig& config = mix.config;
    if (has_kernels) config.dtype = model::Dtype::kBFloat16;
    if (seed % 5 == 0) add_adapter(draw, config);
    const at::ScalarType dtype = config.dtype == model::Dtype::kBFloat16 ? at::kBFloat16 : at::kFloat;
    const bool can_record = ops->can_record(dtype, config.num_heads, config.num_kv_heads, config.head_dim);
    recorded += *mix.engine.record_steps && can_record ? 1 : 0;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + mix.describe());
    // The engine records where it can, or not at all.
    if (*mix.engine.record_steps) mix.engine.record_steps.reset();
    const Outcome outcome = run(mix, *ops, *ops, seed);
    tokens += outcome.tokens;
    EXPECT_EQ(outcome.different, 0) << "of " << outcome.tokens << " log-probs differ";
    EXPECT_EQ(outcome.reported_difference, 0.0);
  }
  EXPECT_GT(tokens, 1000);
  EXPECT_EQ(recorded > 10, ops->can_record(at::kBFloat16, 4, 2, 64)) << recorded << " steps were recorded";
  std::printf("[   info   ] %s: %lld tokens, all equal\n", ops->name().c_str(), static_cast<long long>(tokens));
}

// A silu_mul that depends on how many rows the batch has: the property test exists to catch this.
class BatchDependentOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  at::Tensor silu_mul(const at::Tensor& gate_up) const override {
    at::Tensor y = inner_.silu_mul(gate_up);
    if (gate_up.size(0) > 4) y = inner_.add(y, y);
    return y;
  }
};

TEST(OnPolicy, NamesTheOperationThatDependsOnItsBatch) {
  const auto sound = device::make_cpu_ops("auto", 1);
  const BatchDependentOps broken(*sound);
  TestDraw draw(3);
  Mix mix(draw, architecture_of(3));
  mix.isa = "auto";
  mix.requests.front().sampling.max_new_tokens = 12;
  mix.trainer.batch.max_tokens_per_gpu = 4096;
  mix.engine.limits.max_running = 1;
  EXPECT_GT(run(mix, broken, broken, 3).different, 0);
  EXPECT_EQ(broken_operation(mix, broken, broken, 3), "silu_mul");
  EXPECT_EQ(broken_operation(mix, *sound, *sound, 3), "none: the rows that engine and trainer feed in differ");
}

}  // namespace
}  // namespace tandem::sim
