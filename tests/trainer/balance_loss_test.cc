// Tests of the loss that balances experts: its gradient is that of its formula, and a step's does not depend on which
// samples share a micro-batch or a prompt.
#include "trainer/balance_loss.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "tests/golden/golden.h"
#include "tests/trainer/fixture.h"
#include "tests/weights/tensor_files.h"

namespace tandem::trainer {
namespace {

constexpr const char* kSparse = "Qwen3MoeForCausalLM";

// Returns the loss of a sample with these logits [T, X] and chosen experts [T, C], float64 and differentiable.
at::Tensor loss_by_formula(const at::Tensor& logits_TX, const at::Tensor& ids_TC) {
  const auto tokens = static_cast<double>(ids_TC.size(0)), chosen = static_cast<double>(ids_TC.size(1));
  const auto experts = static_cast<double>(logits_TX.size(1));
  const at::Tensor counts_X = at::bincount(ids_TC.flatten(), {}, logits_TX.size(1)).to(at::kDouble);
  return (counts_X.mul(experts / (chosen * tokens)) * at::softmax(logits_TX, 1).mean(0)).sum();
}

at::Tensor rows_of(const PackedBatch& batch, size_t sample, const at::Tensor& x) {
  const RowRange &prompt = batch.prompt_rows[sample], &own = batch.own_rows[sample];
  return at::cat({x.slice(0, prompt.begin, prompt.end), x.slice(0, own.begin, own.end)});
}

// Groups have one, two and three samples, one of which has no completion, and one group has no completion at all.
std::vector<rl::Sample> uneven_groups() {
  std::vector<rl::Sample> samples;
  for (rl::Sample& sample : random_samples(3, 4, 3)) {
    if (sample.group_id == 0 && samples.size() == 1) continue;
    if (sample.group_id == 1 && samples.back().group_id == 1) continue;
    samples.push_back(std::move(sample));
  }
  for (rl::Sample& sample : samples) {
    if (sample.group_id == 2) sample.completion.clear();
  }
  samples.back().completion.clear();
  return samples;
}

TEST(BalanceLoss, GradientAndSumAreThoseOfAutogradInFloat64) {
  constexpr int64_t kExperts = 5, kChosen = 2;
  constexpr double kFactor = 0.7;
  at::manual_seed(1);  // the same logits whichever tests ran before
  const std::vector<rl::Sample> samples = uneven_groups();
  const PackedBatch batch = pack_batch(pointers(samples));
  std::vector<bool> counts;
  for (size_t s = 0; s < samples.size(); ++s) counts.push_back(!samples[s].completion.empty() && s != 2);
  model::ModelConfig config = model::small_config(/*num_layers=*/2, kSparse);
  config.experts = {.count = kExperts, .chosen = kChosen, .width = 8, .normalises = true};
  BalanceLoss balance(config, test_ops());
  balance.begin_step(kFactor);
  ASSERT_TRUE(balance.begin_batch(batch, counts));
  double sum = 0.0;
  for (int layer = 0; layer < 2; ++layer) {
    const at::Tensor logits_TX = at::randn({batch.num_tokens(), kExperts}).mul_(2.0);
    const device::Routing routing = test_ops().route(logits_TX, {.chosen = kChosen, .normalises = true});
    const at::Tensor gradient_TX = balance.logits_gradient(logits_TX, routing);

    const c10::AutoGradMode with_gradients(true);
    const at::Tensor leaf_TX = logits_TX.to(at::kDouble).set_requires_grad(true);
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (size_t s = 0; s < samples.size(); ++s) {
      if (counts[s]) loss = loss + loss_by_formula(rows_of(batch, s, leaf_TX), rows_of(batch, s, routing.ids_TC));
    }
    sum += loss.item<double>();
    const at::Tensor expected_TX = torch::autograd::grad({loss * kFactor}, {leaf_TX})[0];
    EXPECT_LT(gradient_TX.to(at::kDouble).sub(expected_TX).abs().max().item<double>(),
              1e-6 * expected_TX.abs().max().item<double>());
  }
  EXPECT_NEAR(balance.end_step(no_other_ranks()), sum / 2, 1e-5);
}

TEST(BalanceLoss, ABatchWhoseSamplesAreAllRemovedHasNone) {
  const std::vector<rl::Sample> samples = random_samples(4, 1, 2);
  const PackedBatch batch = pack_batch(pointers(samples));
  BalanceLoss balance(model::small_config(/*num_layers=*/2, kSparse), test_ops());
  balance.begin_step(1.0);
  EXPECT_FALSE(balance.begin_batch(batch, {false, false}));
  EXPECT_EQ(balance.end_step(no_other_ranks()), 0.0);
}

// Returns the rows of a reference's batch as samples, each with a prompt of one token.
std::vector<rl::Sample> rows_of_reference(const std::map<std::string, at::Tensor>& golden) {
  const at::Tensor ids = golden.at("batch.input_ids"), attention_mask = golden.at("batch.attention_mask");
  std::vector<rl::Sample> samples;
  for (int64_t row = 0; row < ids.size(0); ++row) {
    rl::Sample sample;
    sample.group_id = sample.sample_id = static_cast<uint64_t>(row);
    std::vector<int32_t> tokens;
    for (int64_t t = 0; t < attention_mask[row].sum().item<int64_t>(); ++t)
      tokens.push_back(ids[row][t].item<int32_t>());
    sample.completion.assign(tokens.begin() + 1, tokens.end());
    sample.prompt = rl::make_prompt({tokens.front()});
    sample.loss_mask.assign(sample.completion.size(), 1);
    sample.rollout_logprobs.assign(sample.completion.size(), -1.0F);
    sample.advantages = {0.0};
    samples.push_back(std::move(sample));
  }
  return samples;
}

TrainerConfig balancing(double coefficient) {
  TrainerConfig config;
  config.router.aux_loss_coeff = coefficient;
  return config;
}

// The advantages are 0, so that nothing else has a gradient.
TEST(BalanceLoss, AStepsGradientIsThatOfAutogradThroughTheWholeModel) {
  const auto balance = weights::read_tensors(golden::directory() + "/moe/balance.safetensors");
  for (const std::string name : {"qwen3-moe", "qwen3-moe-unnormed"}) {
    const auto reference = weights::read_tensors(golden::directory() + "/reference/" + name + "/reference.safetensors");
    for (const device::Ops* ops : {&test_ops(), &reference_ops()}) {
      SCOPED_TRACE(name + " " + ops->name());
      TestModel m = model::load_model(golden::directory() + "/models/" + name, *ops);
      const auto trainer = make_trainer(balancing(2.0), *m.store, *m.model);
      const Metrics metrics = trainer->step(pointers(rows_of_reference(reference)));
      const at::Tensor loss_L = balance.at(name + ".loss");
      EXPECT_NEAR(metrics.at("moe/aux_loss"), loss_L.mean().item<double>(), 1e-6);
      EXPECT_NEAR(metrics.at("loss"), 2.0 * loss_L.sum().item<double>(), 1e-5) << "a sum over layers";
      size_t num_compared = 0;
      for (const weights::PackedTensor& packed : m.store->layout().tensors) {
        for (const weights::Slice& slice : packed.slices) {
          const auto theirs = balance.find(name + ".grad." + slice.hf_name);
          if (theirs == balance.end()) continue;
          const at::Tensor ours = trainer->gradient(packed.name).narrow(0, slice.row_begin, slice.shape[0]);
          EXPECT_LT(ours.div(2.0).sub(theirs->second).abs().max().item<double>(), 1e-6) << slice.hf_name;
          ++num_compared;
        }
      }
      EXPECT_EQ(num_compared, 5 * static_cast<size_t>(m.config.num_layers));
    }
  }
}

struct Outcome {
  Metrics metrics;
  std::map<std::string, at::Tensor> gradients;
};

Outcome one_step(const TrainerConfig& config, const std::vector<rl::Sample>& samples,
                 RolloutLogprobs logprobs = RolloutLogprobs::kOfOtherWeights) {
  model::ModelConfig shape = model::small_config(/*num_layers=*/3, kSparse);
  shape.tied_embeddings = false;
  TestModel m = model::random_model(shape, test_ops());
  const auto trainer = make_trainer(config, *m.store, *m.model);
  Outcome outcome{.metrics = trainer->step(pointers(samples), logprobs), .gradients = gradients(*trainer, *m.store)};
  return outcome;
}

TEST(BalanceLoss, AStepsGradientDoesNotDependOnThePacking) {
  const std::vector<rl::Sample> samples = random_samples(6, 4, 3);
  std::vector<rl::Sample> unshared = samples;
  for (size_t s = 0; s < unshared.size(); ++s) unshared[s].group_id = s;
  const TrainerConfig config = balancing(3.0);
  const Outcome whole = one_step(config, samples);
  ASSERT_GT(relative_difference(one_step(balancing(0.0), samples).gradients, whole.gradients), 1e-2);
  const auto expect_as_whole = [&](const Outcome& other) {
    EXPECT_LT(relative_difference(other.gradients, whole.gradients), 3e-6);
    EXPECT_NEAR(other.metrics.at("moe/aux_loss"), whole.metrics.at("moe/aux_loss"), 1e-6);
    EXPECT_NEAR(other.metrics.at("loss"), whole.metrics.at("loss"), 1e-5);
  };
  expect_as_whole(one_step(config, unshared));
  for (const int64_t max_tokens : {1, 70}) {
    SCOPED_TRACE(max_tokens);
    TrainerConfig split = config;
    split.batch.max_tokens_per_gpu = max_tokens;
    expect_as_whole(one_step(split, samples));
    expect_as_whole(one_step(split, unshared));
  }
}

// A recomputed block routes again and is differentiated once.
TEST(BalanceLoss, RecomputedBlocksGiveTheSameBits) {
  const std::vector<rl::Sample> samples = random_samples(7, 3, 3);
  const Outcome kept = one_step(balancing(1.0), samples);
  TrainerConfig config = balancing(1.0);
  config.recompute_layers = 2;
  const Outcome again = one_step(config, samples);
  EXPECT_EQ(again.metrics, kept.metrics);
  for (const auto& [name, gradient] : kept.gradients) EXPECT_TRUE(gradient.equal(again.gradients.at(name))) << name;
}

// Without advantages nothing but balance is learnt, in either kind of pass; removed samples have no part in it.
TEST(BalanceLoss, IsLearntWhereNothingElseIs) {
  for (const RolloutLogprobs logprobs : {RolloutLogprobs::kOfOtherWeights, RolloutLogprobs::kOfTheseWeights}) {
    std::vector<rl::Sample> samples = random_samples(8, 4, 2);
    for (rl::Sample& sample : samples) sample.advantages = {0.0};
    TestModel m = model::random_model(model::small_config(/*num_layers=*/2, kSparse), test_ops());
    TrainerConfig config = balancing(1.0);
    config.schedule.max_lr = 2e-3;
    const auto trainer = make_trainer(config, *m.store, *m.model);
    std::vector<double> losses;
    for (int step = 0; step < 5; ++step) {
      const Metrics metrics = trainer->step(pointers(samples), logprobs);
      EXPECT_EQ(metrics.at("zero_gradient"), 0.0);
      EXPECT_EQ(metrics.at("step_skipped"), 0.0);
      losses.push_back(metrics.at("moe/aux_loss"));
    }
    EXPECT_GT(losses.front(), 1.2) << testing::PrintToString(losses);
    EXPECT_LT(losses.back(), 1.1) << testing::PrintToString(losses);
    for (rl::Sample& sample : samples) sample.remove = true;
    const Metrics metrics = trainer->step(pointers(samples), logprobs);
    EXPECT_EQ(metrics.at("zero_gradient"), 1.0);
    EXPECT_FALSE(metrics.contains("moe/aux_loss"));
  }
}

}  // namespace
}  // namespace tandem::trainer
