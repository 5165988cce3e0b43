// Tests that the number of data ranks is not an input of the results: weights, masters, moments and metrics of several
// steps are those of one rank, bit for bit. Each rank is a thread with a model of its own.
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <thread>

#include "device/cpu/cpu_host_memory.h"
#include "model/lora.h"
#include "model/registry.h"
#include "tandem/error.h"
#include "tests/device/ranks/thread_communicator.h"
#include "tests/model/random_weights.h"
#include "tests/trainer/fixture.h"
#include "trainer/score.h"

namespace tandem::trainer {
namespace {

using Steps = std::vector<std::vector<rl::Sample>>;

struct Case {
  std::string name;
  std::vector<int> sizes = {2, 3, 8};  // numbers of ranks
  std::string architecture = model::kArchitectures.front();
  at::ScalarType dtype = at::kFloat;
  bool tied = true;
  bool has_adapter = false;
  bool offloads = false;
  bool scores_first = false;  // scores with all ranks together, for RolloutLogprobs::kOfTheseWeights
  TrainerConfig config = {};
  Steps steps = {};
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// A model whose tensors have up to eight blocks, so that ranks own many rows, a few or none.
struct RankModel {
  explicit RankModel(const Case& c) {
    config = model::small_config(/*num_layers=*/3, c.architecture);
    config.hidden = 96;
    config.mlp = 160;
    config.vocab = 330;
    config.tied_embeddings = c.tied;
    config.dtype = c.dtype == at::kFloat ? model::Dtype::kFloat32 : model::Dtype::kBFloat16;
    if (c.has_adapter) {
      config.lora = {.rank = 12,
                     .alpha = 8.0,
                     .target_modules = {"q_proj", "o_proj", "down_proj"},
                     .saved_modules = {"embed_tokens", "norm"}};
      if (!config.experts) config.lora->dropout = 0.2;
    }
    base = std::make_unique<weights::WeightStore>(model::build_layout(config), c.dtype);
    model::draw_weights(*base, 0.2, 11);
    if (!c.has_adapter) {
      model = model::make_model(config, base->view(), *ops);
      return;
    }
    adapter = std::make_unique<weights::WeightStore>(model::adapter_layout(config), c.dtype);
    model::draw_weights(*adapter, 0.2, 12);
    model = model::make_model(config, base->view().with(adapter->view()), *ops);
  }
  weights::WeightStore& trained() const { return adapter ? *adapter : *base; }

  std::unique_ptr<device::Ops> ops = device::make_cpu_ops("auto", 1);
  model::ModelConfig config;
  std::unique_ptr<weights::WeightStore> base, adapter;
  std::unique_ptr<model::Model> model;
};

std::string bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.nbytes())};
}

// The state of a rank after all steps. It has its own rows, in packed order: those of all ranks, one after the other,
// are whole.
struct RankOutcome {
  std::string metrics;
  std::map<std::string, std::string> weights = {}, state = {};
  OptimizerProgress progress;
};

RankOutcome outcome_of(const Trainer& trainer, const weights::WeightStore& store, std::string metrics) {
  RankOutcome outcome{.metrics = std::move(metrics), .progress = trainer.progress()};
  for (const auto& packed : store.layout().tensors) outcome.weights[packed.name] = bytes_of(store.tensor(packed.name));
  for (const auto& [name, tensor] : named_state(trainer)) outcome.state[name] = bytes_of(tensor);
  return outcome;
}

// Calls f(ranks) on a thread for each rank and returns what it returned. Rethrows what one of them throws.
template <typename F>
auto on_ranks(int size, F f) {
  const auto device = device::thread_communicators(size), host = device::thread_communicators(size);
  std::vector<decltype(f(no_other_ranks()))> results(static_cast<size_t>(size));
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < results.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        results[r] = f(Ranks{.device = *device[r], .host = *host[r], .parts = no_other_ranks().parts});
      } catch (...) {
        errors[r] = std::current_exception();
        for (const auto& ends : {&device, &host}) (*ends)[r]->abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return results;
}

RankOutcome train(const Case& c, const Ranks& ranks) {
  const RankModel m(c);
  device::CpuHostMemory host_memory;
  std::optional<OptimizerOffload> offload;
  if (c.offloads) offload.emplace(OptimizerOffload{.host_memory = host_memory, .piece_elements = 5000});
  const auto trainer = make_trainer(c.config, m.trained(), *m.model, offload, ranks);
  std::string metrics;
  for (std::vector<rl::Sample> samples : c.steps) {
    auto of = RolloutLogprobs::kOfOtherWeights;
    if (c.scores_first) {
      m.model->set_weights(c.has_adapter ? m.base->view().with(m.adapter->view()) : m.base->view());
      const Scores scores = score(*m.model, pointers(samples), c.config.batch, c.config.temperature, ranks);
      for (size_t s = 0; s < samples.size(); ++s) samples[s].rollout_logprobs = scores.logprobs[s];
      for (const auto& entropy : scores.entropy) metrics += fmt::format("{} ", entropy.empty() ? 0 : entropy.back());
      of = RolloutLogprobs::kOfTheseWeights;
    }
    for (const auto& [name, value] : trainer->step(pointers(samples), of))
      metrics += fmt::format("{} {}\n", name, std::isnan(value) ? "nan" : fmt::format("{}", value));
    trainer->end_phase();
  }
  return outcome_of(*trainer, m.trained(), std::move(metrics));
}

RankOutcome train_on_ranks(const Case& c, int size) {
  const std::vector<RankOutcome> of_ranks = on_ranks(size, [&](const Ranks& ranks) { return train(c, ranks); });
  RankOutcome whole = of_ranks.front();
  for (size_t r = 1; r < of_ranks.size(); ++r) {
    EXPECT_EQ(of_ranks[r].metrics, whole.metrics);
    EXPECT_EQ(of_ranks[r].progress, whole.progress);
    EXPECT_TRUE(of_ranks[r].weights == whole.weights) << "rank " << r << " has other weights than rank 0";
    for (const auto& [name, rows] : of_ranks[r].state) whole.state[name] += rows;
  }
  return whole;
}

Steps random_steps(int num_groups, int group_size, int count = 3) {
  Steps steps;
  for (int i = 0; i < count; ++i)
    steps.push_back(random_samples(static_cast<uint32_t>(20 + i), num_groups, group_size));
  return steps;
}

void silence(rl::Sample& sample) { sample.advantages.assign(sample.completion.size(), 0.0); }

Case basic(std::string name) {
  Case c{.name = std::move(name), .steps = random_steps(5, 3)};
  c.config.schedule.max_lr = 1e-2;
  c.config.batch.max_tokens_per_gpu = 70;
  return c;
}

// Returns a case whose gradients are all 0 except for the samples with an advantage.
Case silent(std::string name) {
  Case c = basic(std::move(name));
  for (size_t s = 0; s < c.steps[0].size(); ++s)
    if (s % 6 != 0) silence(c.steps[0][s]);
  for (rl::Sample& sample : c.steps[1]) silence(sample);  // without an advantage there is no gradient
  for (size_t s = 0; s + 1 < c.steps[2].size(); ++s) silence(c.steps[2][s]);
  return c;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::string suffix = dtype == at::kFloat ? "Float32" : "BFloat16";
    for (const bool tied : {true, false}) {
      Case c = basic((tied ? "Tied" : "Untied") + suffix);
      c.sizes = {2, 3, 4, 8};
      c.dtype = dtype;
      c.tied = tied;
      c.config.loss.kl_loss_coef = 0.05;
      c.config.loss.entropy_coef = 0.01;
      c.config.loss.get_mismatch_metrics = true;
      c.config.recompute_layers = tied ? 0 : 2;
      c.config.batch.logprob_chunk_rows = tied ? 1024 : 13;
      all.push_back(c);
    }
    Case c = basic("Offload" + suffix);
    c.dtype = dtype;
    c.offloads = true;
    all.push_back(c);
    c = basic("Sparse" + suffix);  // experts without a place in a micro-batch too
    c.architecture = "Qwen3MoeForCausalLM";
    c.dtype = dtype;
    c.config.batch.max_tokens_per_gpu = 30;
    c.config.recompute_layers = 2;
    c.config.router.aux_loss_coeff = 0.1;
    all.push_back(c);
  }
  Case c = basic("Adapter");
  c.dtype = at::kBFloat16;
  c.has_adapter = true;
  all.push_back(c);
  c = basic("AdapterOfExperts");
  c.architecture = "Qwen3MoeForCausalLM";
  c.dtype = at::kBFloat16;
  c.has_adapter = true;
  c.config.batch.max_tokens_per_gpu = 30;
  all.push_back(c);
  c = silent("SparseWithoutSome");  // its load is among the metrics, whichever rank has no gradient
  c.architecture = "Qwen3MoeForCausalLM";
  all.push_back(c);
  c = basic("LogProbsOfTheseWeights");
  c.dtype = at::kBFloat16;
  c.scores_first = true;
  all.push_back(c);
  all.push_back(silent("ZeroLossMicroBatches"));
  c = silent("ZeroLossKnownBefore");
  c.scores_first = true;
  all.push_back(c);
  c = basic("ZeroGradientsDecay");
  for (rl::Sample& sample : c.steps[1]) silence(sample);
  c.config.gradient.skip_zero_gradient = false;
  all.push_back(c);
  c = basic("MoreRanksThanMicroBatches");
  c.config.batch.max_tokens_per_gpu = 8192;
  all.push_back(c);
  c = basic("AMultipleOfMicroBatches");
  c.config.batch.max_tokens_per_gpu = 8192;
  c.config.batch.micro_batches_multiple = 4;
  all.push_back(c);
  for (const int64_t group : {2, 3, 8}) {  // 10 to 15 micro-batches
    c = basic(fmt::format("SumsOf{}", group));
    c.sizes = group == 3 ? std::vector<int>{2, 3, 6} : std::vector<int>{2, 3, 4, 8, 16};
    c.config.batch.gradient_sum_group = group;
    c.config.batch.max_tokens_per_gpu = 30;
    all.push_back(c);
    c.name += "BFloat16AdapterOffload";
    c.sizes = {4, static_cast<int>(2 * group)};
    c.dtype = at::kBFloat16;
    c.has_adapter = c.offloads = true;
    all.push_back(c);
    c = silent(fmt::format("SumsOf{}WithoutSome", group));
    c.sizes = {2, 4, static_cast<int>(group), static_cast<int>(2 * group)};
    c.config.batch.gradient_sum_group = group;
    c.config.batch.max_tokens_per_gpu = 30;
    all.push_back(c);
  }
  for (const bool scores_first : {false, true}) {  // by log-probs of a pass of all ranks, or by those of the samples
    c = basic(scores_first ? "ClipCovKnown" : "ClipCov");
    c.scores_first = scores_first;
    c.config.loss.pg_loss_type = "clip_cov";
    c.config.loss.clip_cov_ratio = 0.2;
    c.config.loss.clip_cov_lb = -0.5;
    c.config.seed = 5;
    all.push_back(c);
  }
  c = basic("KlCov");
  c.dtype = at::kBFloat16;
  c.config.loss.pg_loss_type = "kl_cov";
  c.config.loss.kl_cov_ratio = 0.3;
  all.push_back(c);
  c.name = "KlCovSparse";
  c.architecture = "Qwen3MoeForCausalLM";
  all.push_back(c);
  c = basic("TopEntropy");
  c.dtype = at::kBFloat16;
  c.config.loss.top_entropy_quantile = 0.4;
  all.push_back(c);
  c.name = "TopEntropySparse";
  c.architecture = "Qwen3MoeForCausalLM";
  c.config.router.aux_loss_coeff = 0.1;
  all.push_back(c);
  c = basic("SkippedSteps");
  c.steps[1][4].advantages.assign(c.steps[1][4].completion.size(), NAN);
  all.push_back(c);
  c = basic("SkippedForTheirNorm");
  c.config.gradient.max_grad_norm_skip = 1e-6;
  all.push_back(c);
  c = basic("NoClipping");
  c.config.gradient.clip_grad = 0.0;
  all.push_back(c);
  c = basic("SamplesWithoutTokens");
  for (const size_t s : {1U, 3U, 4U, 5U}) {  // one sample of a group, and a whole group
    rl::Sample& sample = c.steps[0][s];
    for (auto* values : {&sample.rollout_logprobs, &sample.ref_logprobs}) values->clear();
    sample.completion.clear();
    sample.loss_mask.clear();
    sample.advantages.clear();
  }
  all.push_back(c);
  return all;
}

class DataParallel : public testing::TestWithParam<Case> {};

TEST_P(DataParallel, TheNumberOfRanksChangesNoBit) {
  const RankOutcome one = train(GetParam(), no_other_ranks());
  ASSERT_FALSE(one.metrics.empty());
  for (const int size : GetParam().sizes) {
    SCOPED_TRACE(fmt::format("{} ranks", size));
    const RankOutcome many = train_on_ranks(GetParam(), size);
    EXPECT_EQ(many.metrics, one.metrics);
    EXPECT_EQ(many.progress, one.progress);
    for (const auto& [name, bytes] : one.weights) EXPECT_TRUE(many.weights.at(name) == bytes) << name;
    ASSERT_EQ(many.state.size(), one.state.size());
    for (const auto& [name, bytes] : one.state) EXPECT_TRUE(many.state.at(name) == bytes) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, DataParallel, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

// Counts the bytes that a rank sends to each other one.
class CountingRanks final : public device::Communicator {
 public:
  explicit CountingRanks(device::Communicator& ranks) : sent(static_cast<size_t>(ranks.size())), ranks_(ranks) {}
  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  std::unique_ptr<Exchange> start_exchange(device::TensorLists to, device::TensorLists from) override {
    for (size_t r = 0; r < to.size(); ++r)
      for (const at::Tensor& tensor : to[r]) sent[r] += tensor.nbytes();
    return ranks_.start_exchange(std::move(to), std::move(from));
  }
  void abort() noexcept override { ranks_.abort(); }

  std::vector<size_t> sent;  // bytes by rank

 private:
  device::Communicator& ranks_;
};

// What eight ranks send each other in a step of a micro-batch each, by sender and receiver: gradients and weights.
struct Sent {
  std::vector<std::vector<size_t>> bytes;
  size_t between(size_t ranks_per_host) const {
    size_t sum = 0;
    for (size_t from = 0; from < bytes.size(); ++from)
      for (size_t to = 0; to < bytes.size(); ++to)
        if (from / ranks_per_host != to / ranks_per_host) sum += bytes[from][to];
    return sum;
  }
  size_t peers_of(size_t rank) const {
    return static_cast<size_t>(std::ranges::count_if(bytes[rank], [](size_t sent) { return sent > 0; }));
  }
};
Sent sent_with(int64_t group) {
  Case c = basic("");
  c.steps = random_steps(/*num_groups=*/8, /*group_size=*/1);
  c.config.batch.max_tokens_per_gpu = 1;  // a micro-batch for each sample
  c.config.batch.gradient_sum_group = group;
  return {.bytes = on_ranks(8, [&](const Ranks& ranks) {
            const RankModel m(c);
            CountingRanks counting(ranks.device);
            Ranks counted{.device = counting, .host = ranks.host, .parts = ranks.parts};
            const auto trainer = make_trainer(c.config, m.trained(), *m.model, std::nullopt, counted);
            std::vector<rl::Sample> samples = c.steps[0];
            for (rl::Sample& sample : samples) {
              sample.advantages.assign(sample.completion.size(), 1.0);
              sample.loss_mask.assign(sample.completion.size(), 1);
            }
            trainer->step(pointers(samples));
            return counting.sent;
          })};
}

TEST(DataParallelSums, OfGroupsSendAnNthBetweenGroupsToFewerRanks) {
  const Sent each = sent_with(1);
  EXPECT_EQ(each.peers_of(0), 7U);
  for (const size_t group : {2U, 4U}) {
    const Sent sums = sent_with(static_cast<int64_t>(group));
    std::printf("groups of %zu of 8 ranks: %zu bytes leave a group, %zu without groups; %zu peers, not 7\n", group,
                sums.between(group), each.between(group), sums.peers_of(0));
    EXPECT_EQ(sums.between(group) * group, each.between(group));
    EXPECT_EQ(sums.peers_of(0), group - 1 + 8 / group - 1);
  }
}

TEST(DataParallelSums, OfGroupsHaveBitsOfTheirOwn) {
  Case c = basic("");
  c.config.batch.max_tokens_per_gpu = 30;
  const RankOutcome chain = train(c, no_other_ranks());
  for (const int64_t group : {2, 3, 8}) {
    c.config.batch.gradient_sum_group = group;
    EXPECT_FALSE(train(c, no_other_ranks()).state == chain.state) << group;
  }
  c.config.batch.gradient_sum_group = 64;  // all of a step's
  EXPECT_TRUE(train(c, no_other_ranks()).state == chain.state);
}

// From the state of some ranks, row by row, any other number of ranks can continue.
TEST(DataParallelState, AnotherNumberOfRanksGoesOnFromTheRowsOfTheFirst) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Case c = basic("");
    c.dtype = dtype;
    const RankOutcome want = train(c, no_other_ranks());
    std::map<std::string, at::Tensor> saved;
    {
      const RankModel m(c);
      const auto trainer = make_trainer(c.config, m.trained(), *m.model);
      for (int i = 0; i < 2; ++i) trainer->step(pointers(c.steps[static_cast<size_t>(i)]));
      for (const auto& [name, tensor] : named_state(*trainer)) saved[name] = tensor.clone();
    }
    const auto of_ranks = on_ranks(3, [&](const Ranks& ranks) {
      RankModel m(c);
      const auto trainer = make_trainer(c.config, m.trained(), *m.model, std::nullopt, ranks);
      for (const OptimizerTensor& one : trainer->state()) {
        const at::Tensor& whole = saved.at(std::string(to_string(one.kind)) + "." + one.packed->name);
        one.tensor.copy_(whole.narrow(0, one.row_begin, one.tensor.size(0)));
      }
      trainer->restore({.updates = 2, .steps = 2});
      trainer->step(pointers(c.steps[2]));
      return outcome_of(*trainer, m.trained(), "");
    });
    for (const RankOutcome& one : of_ranks) EXPECT_TRUE(one.weights == want.weights);
  }
}

// One rank is asked to stop: all abandon the step, nothing has changed, and the next one may follow.
TEST(DataParallelAbandon, OneRankIsEnough) {
  Case c = basic("");
  const RankOutcome want = train(c, no_other_ranks());
  const auto of_ranks = on_ranks(3, [&](const Ranks& ranks) {
    const RankModel m(c);
    int calls = 0;
    TrainerConfig config = c.config;
    config.abandon = [&calls, &ranks] { return ranks.rank() == 1 && ++calls == 2; };
    const auto trainer = make_trainer(config, m.trained(), *m.model, std::nullopt, ranks);
    bool is_abandoned = false;
    try {
      trainer->step(pointers(c.steps[0]));
    } catch (const StepAbandoned&) {
      is_abandoned = true;
    }
    if (!is_abandoned) throw BugError("a rank went on");
    for (const auto& samples : c.steps) trainer->step(pointers(samples));
    return outcome_of(*trainer, m.trained(), "");
  });
  for (const RankOutcome& one : of_ranks) {
    EXPECT_TRUE(one.weights == want.weights);
    EXPECT_EQ(one.progress, want.progress);
  }
}

}  // namespace
}  // namespace tandem::trainer
