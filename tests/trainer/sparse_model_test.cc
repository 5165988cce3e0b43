// Tests of what a step promises for a sparse model: its load is counted, a frozen router keeps its bits, and GSPO's
// gradient is its formula's.
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "device/cpu/cpu_host_memory.h"
#include "tests/trainer/fixture.h"
#include "trainer/routing_load.h"
#include "trainer/score.h"

namespace tandem::trainer {
namespace {

constexpr const char* kSparse = "Qwen3MoeForCausalLM";

TestModel sparse_model(at::ScalarType dtype, bool router_is_frozen) {
  model::ModelConfig config = model::small_config(/*num_layers=*/3, kSparse);
  config.tied_embeddings = false;
  config.dtype = dtype == at::kFloat ? model::Dtype::kFloat32 : model::Dtype::kBFloat16;
  config.experts->router_is_frozen = router_is_frozen;
  return model::random_model(config, test_ops());
}

double entropy_of(const std::vector<double>& logits) {
  double sum = 0.0, entropy = 0.0;
  for (const double logit : logits) sum += std::exp(logit);
  for (const double logit : logits) entropy -= std::exp(logit) / sum * (logit - std::log(sum));
  return entropy;
}

TEST(RoutingLoad, IsThatOfTheChosenExperts) {
  model::ModelConfig config = model::small_config(/*num_layers=*/2, kSparse);
  config.experts = {.count = 4, .chosen = 2, .width = 8, .normalises = true};
  RoutingLoad load(config, test_ops(), /*logs_layers=*/true);
  load.begin_step();
  // The first layer's tokens choose experts 0 and 1, 0 and 2, 0 and 1; the second layer's tokens 2 and 3.
  const std::vector<std::vector<double>> first = {{2, 1, 0, -1}, {3, 0, 0.5, -2}, {1, 0.25, -1, -3}},
                                         second = {{0, 0, 4, 1}, {0, 0, 2, 3}};
  double entropy = 0.0, top1 = 0.0;
  int64_t layer = 0;
  for (const auto& rows : {first, second}) {
    std::vector<float> numbers;
    for (const std::vector<double>& row : rows) {
      numbers.insert(numbers.end(), row.begin(), row.end());
      entropy += entropy_of(row) / 5;
      std::vector<double> sorted = row;
      std::ranges::sort(sorted, std::greater<>());
      top1 += 1.0 / (1.0 + std::exp(sorted[1] - sorted[0])) / 5;
    }
    const at::Tensor logits_TX = at::tensor(numbers).view({-1, 4});
    load.routed(layer++, logits_TX, test_ops().route(logits_TX, {.chosen = 2, .normalises = true}));
  }
  const std::map<std::string, double> metrics = load.end_step(no_other_ranks());
  EXPECT_EQ(metrics.size(), 8U);
  EXPECT_EQ(metrics.at("moe/load_max_over_mean_layer_0"), 2.0);
  EXPECT_EQ(metrics.at("moe/load_max_over_mean_layer_1"), 2.0);
  EXPECT_EQ(metrics.at("moe/unused_experts_layer_0"), 1.0) << "3";
  EXPECT_EQ(metrics.at("moe/unused_experts_layer_1"), 2.0);
  EXPECT_EQ(metrics.at("moe/load_max_over_mean"), 2.0) << "3 of 6 places over 6 / 4, and 2 of 4 over 4 / 4";
  EXPECT_EQ(metrics.at("moe/unused_experts"), 2.0) << "0 and 1 of the second layer";
  EXPECT_NEAR(metrics.at("moe/router_entropy"), entropy, 2e-6);
  EXPECT_NEAR(metrics.at("moe/top1_weight"), top1, 2e-6);
  load.begin_step();
  EXPECT_TRUE(load.end_step(no_other_ranks()).empty()) << "the step before is forgotten";
}

std::map<std::string, double> load_of(const Metrics& metrics) {
  std::map<std::string, double> load;
  for (const auto& [name, value] : metrics)
    if (name.starts_with("moe/")) load[name] = value;
  return load;
}

// A block that is run again routes again, and the pass of get_mismatch_metrics is one more forward.
TEST(RoutingLoad, CountsEachTokenOnce) {
  const std::vector<rl::Sample> samples = random_samples(3, 3, 2);
  std::vector<std::map<std::string, double>> loads;
  for (const int64_t recompute_layers : {0, 2, 3}) {
    TestModel m = sparse_model(at::kFloat, /*router_is_frozen=*/false);
    TrainerConfig config;
    config.batch.max_tokens_per_gpu = 60;
    config.recompute_layers = recompute_layers;
    config.loss.get_mismatch_metrics = recompute_layers == 2;
    loads.push_back(load_of(make_trainer(config, *m.store, *m.model)->step(pointers(samples))));
  }
  ASSERT_EQ(loads[0].size(), 4U);
  EXPECT_EQ(loads[1], loads[0]);
  EXPECT_EQ(loads[2], loads[0]);
  EXPECT_GE(loads[0].at("moe/load_max_over_mean"), 1.0);
  EXPECT_LE(loads[0].at("moe/load_max_over_mean"), 3.0) << "6 experts, 2 a token";
}

TEST(RoutingLoad, IsNoneOfADenseModel) {
  TestModel m = make_small_model(at::kFloat, /*tied=*/true, test_ops());
  EXPECT_TRUE(load_of(make_trainer({}, *m.store, *m.model)->step(pointers(random_samples(3, 2, 2)))).empty());
}

struct Trained {
  std::map<std::string, at::Tensor> gradients, weights, state;  // gradients of the first step, the others after two
};

Trained two_steps(at::ScalarType dtype, bool router_is_frozen, bool offloads) {
  TestModel m = sparse_model(dtype, router_is_frozen);
  TrainerConfig config;
  config.schedule.max_lr = 1e-2;
  config.adamw.weight_decay = 0.1;
  config.adamw.weight_decay_all = true;
  config.batch.max_tokens_per_gpu = 60;
  device::CpuHostMemory host_memory;
  std::optional<OptimizerOffload> offload;
  if (offloads) offload.emplace(OptimizerOffload{.host_memory = host_memory, .piece_elements = 1000});
  const auto trainer = make_trainer(config, *m.store, *m.model, offload);
  Trained result;
  for (const uint32_t seed : {5, 6}) {
    trainer->step(pointers(random_samples(seed, 4, 3)));
    if (seed == 5) result.gradients = gradients(*trainer, *m.store);
  }
  for (const auto& packed : m.store->layout().tensors)
    result.weights[packed.name] = m.store->tensor(packed.name).clone();
  for (const auto& [name, tensor] : named_state(*trainer)) result.state[name] = tensor.clone();
  return result;
}

TEST(FrozenRouter, KeepsItsBitsWhileTheRestIsTrained) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool offloads : {false, true}) {
      SCOPED_TRACE(testing::Message() << dtype << (offloads ? " offloaded" : ""));
      const TestModel start = sparse_model(dtype, /*router_is_frozen=*/true);
      const Trained frozen = two_steps(dtype, true, offloads), trained = two_steps(dtype, false, offloads);
      int num_routers = 0;
      for (const auto& packed : start.store->layout().tensors) {
        const std::string& name = packed.name;
        const at::Tensor before = start.store->tensor(name);
        EXPECT_EQ(packed.is_frozen, name.ends_with(".router")) << name;
        EXPECT_FALSE(trained.weights.at(name).equal(before)) << name;
        if (!packed.is_frozen) {
          EXPECT_FALSE(frozen.weights.at(name).equal(before)) << name;
          EXPECT_TRUE(frozen.gradients.at(name).equal(trained.gradients.at(name))) << name;
          continue;
        }
        ++num_routers;
        EXPECT_GT(trained.gradients.at(name).abs().max().item<float>(), 0.0F) << name;
        EXPECT_EQ(frozen.gradients.at(name).abs().max().item<float>(), 0.0F) << name;
        EXPECT_TRUE(frozen.weights.at(name).equal(before)) << name;
        EXPECT_TRUE(frozen.state.at("master." + name).equal(before.to(at::kFloat))) << name;
        for (const char* moment : {"exp_avg.", "exp_avg_sq."})
          EXPECT_EQ(frozen.state.at(moment + name).abs().max().item<float>(), 0.0F) << moment << name;
      }
      EXPECT_EQ(num_routers, 3);
    }
  }
}

// GSPO (arXiv 2507.18071, eq. 5-7) has one ratio s for all tokens of a sample, exp of the mean of logp - old, and its
// gradient is that of -s A mean(logp) with a constant s: of REINFORCE with the advantage s A, or 0 where s is clipped.
// What REINFORCE is of a sparse model is checked against transformers in golden_test.cc.
TEST(Gspo, OfASparseModelIsReinforceWithItsRatios) {
  std::mt19937 random(8);
  std::normal_distribution<double> normal;
  std::vector<rl::Sample> samples = random_samples(7, 5, 3);
  const TestModel scorer = sparse_model(at::kFloat, false);
  const Scores scores = score(*scorer.model, pointers(samples), BatchConfig(), /*temperature=*/1.0);
  std::vector<rl::Sample> weighted = samples;
  int num_clipped = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    rl::Sample& sample = samples[i];
    double sum = 0.0, count = 0.0;
    const double shift = 0.2 * normal(random);
    for (size_t t = 0; t < sample.completion.size(); ++t) {
      sample.rollout_logprobs[t] = static_cast<float>(scores.logprobs[i][t] + shift + 0.3 * normal(random));
      if (sample.loss_mask[t] == 0) continue;
      sum += static_cast<double>(scores.logprobs[i][t]) - static_cast<double>(sample.rollout_logprobs[t]);
      count += 1.0;
    }
    const double ratio = count > 0 ? std::exp(sum / count) : 1.0, advantage = sample.advantages.front();
    const bool is_clipped = (advantage > 0 && ratio > 1.2) || (advantage < 0 && ratio < 0.8);
    num_clipped += is_clipped ? 1 : 0;
    weighted[i].advantages.assign(sample.completion.size(), is_clipped ? 0.0 : ratio * advantage);
  }
  ASSERT_GT(num_clipped, 0);
  ASSERT_LT(num_clipped, 10);
  const auto gradients_of = [](const char* surrogate, const std::vector<rl::Sample>& of) {
    TestModel m = sparse_model(at::kFloat, false);
    TrainerConfig config;
    config.loss.pg_loss_type = surrogate;
    const auto trainer = make_trainer(config, *m.store, *m.model);
    trainer->step(pointers(of));
    return gradients(*trainer, *m.store);
  };
  const auto expected = gradients_of("reinforce", weighted);
  EXPECT_LT(relative_difference(gradients_of("gspo", samples), expected), 2e-6);
  EXPECT_GT(relative_difference(gradients_of("ppo", samples), expected), 1e-2) << "GRPO's ratios are the tokens'";
}

}  // namespace
}  // namespace tandem::trainer
