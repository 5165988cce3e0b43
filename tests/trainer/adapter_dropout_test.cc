// Tests of the dropout of adapters: a step against a float64 model that drops the same elements, the rule itself, and
// what the dropped elements do not depend on.
#include "trainer/adapter_dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>
#include <set>

#include "model/decoder/layer.h"
#include "model/lora.h"
#include "model/registry.h"
#include "tests/golden/golden.h"
#include "tests/model/random_weights.h"
#include "tests/trainer/fixture.h"
#include "tests/weights/tensor_files.h"

namespace tandem::trainer {
namespace {

using at::Tensor;

constexpr double kRate = 0.3;

// PEFT's adapter of tests/golden/lora over its model, in float32.
struct PeftModel {
  explicit PeftModel(double rate) : config(model::read_model_config(golden::directory() + "/models/qwen3-tied")) {
    config.lora = {.rank = 4,
                   .alpha = 6.0,
                   .target_modules = {"q_proj", "v_proj", "o_proj", "up_proj", "down_proj"},
                   .dropout = rate};
    base.emplace(model::build_layout(config), at::kFloat);
    weights::load_hf_checkpoint(golden::directory() + "/models/qwen3-tied", *base);
    adapter.emplace(model::adapter_layout(config), at::kFloat);
    weights::load_adapter(golden::directory() + "/lora", *adapter);
    model = model::make_model(config, base->view().with(adapter->view()), test_ops());
  }

  model::ModelConfig config;
  std::optional<weights::WeightStore> base, adapter;
  std::unique_ptr<model::Model> model;
};

// The same model in float64 by ATen's operations and autograd, for one sequence whose rows have these keys.
class WideModel {
 public:
  WideModel(const PeftModel& of, std::vector<uint64_t> row_keys)
      : config_(of.config), windows_(model::adapter_windows(of.config)), row_keys_(std::move(row_keys)) {
    for (const auto& packed : of.base->layout().tensors) {
      weights_[packed.name] = of.base->tensor(packed.name).to(at::kDouble);
    }
    for (const auto& packed : of.adapter->layout().tensors) {
      weights_[packed.name] = of.adapter->tensor(packed.name).to(at::kDouble).set_requires_grad(true);
    }
  }

  // Returns the mean of -log p over the tokens after the first.
  Tensor loss(const Tensor& ids) const {
    const int64_t rows = ids.size(0) - 1;
    Tensor hidden = weights_.at("embed").index_select(0, ids.narrow(0, 0, rows).to(at::kLong));
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) hidden = block(layer, hidden);
    const Tensor logits = at::matmul(norm(hidden, "final_norm"), weights_.at("embed").t());
    const Tensor targets = ids.narrow(0, 1, rows).to(at::kLong).unsqueeze(1);
    return -at::log_softmax(logits, -1).gather(1, targets).mean();
  }

  const Tensor& weight(const std::string& name) const { return weights_.at(name); }

 private:
  Tensor norm(const Tensor& x, const std::string& name) const {
    return x * (x.square().mean(-1, /*keepdim=*/true) + config_.rms_norm_eps).rsqrt() * weights_.at(name);
  }

  // Returns what a matrix with an adapter gives, each module's A reading its own dropped x.
  Tensor linear(int64_t layer, const std::string& matrix, const Tensor& x) const {
    const std::string name = "layers." + std::to_string(layer) + "." + matrix;
    Tensor y = at::matmul(x, weights_.at(name).t());
    const auto windows = windows_.find(name);
    if (windows == windows_.end()) return y;
    const Tensor &a = weights_.at(name + model::kLoraA), &b = weights_.at(name + model::kLoraB);
    const int64_t rank = config_.lora->rank;
    int64_t row = 0;
    for (size_t j = 0; j < windows->second.size(); ++j) {
      const auto [begin, count] = windows->second[j];
      const device::Dropout dropout = {
          .rate = config_.lora->dropout,
          .stream = model::decoder::dropout_stream(layer, matrix) + static_cast<uint64_t>(begin)};
      const Tensor u = at::matmul(x * kept(dropout, x.size(1)), a.narrow(0, static_cast<int64_t>(j) * rank, rank).t());
      const Tensor added = at::matmul(u, b.narrow(0, row, count).t()) * config_.lora->scale();
      y = at::cat({y.narrow(1, 0, begin), y.narrow(1, begin, count) + added,
                   y.narrow(1, begin + count, y.size(1) - begin - count)},
                  1);
      row += count;
    }
    return y;
  }

  // Returns 1 / (1 - rate) where an element is kept, and 0 elsewhere.
  Tensor kept(const device::Dropout& dropout, int64_t width) const {
    Tensor mask = at::empty({static_cast<int64_t>(row_keys_.size()), width}, at::kDouble);
    auto* const to = mask.mutable_data_ptr<double>();
    for (int64_t i = 0; i < mask.numel(); ++i) {
      const bool is_kept = device::is_kept(dropout, row_keys_[static_cast<size_t>(i / width)], i % width);
      to[i] = is_kept ? 1.0 / (1.0 - dropout.rate) : 0.0;
    }
    return mask;
  }

  // Rotates the halves of each head by the row's position.
  Tensor rotated(const Tensor& x_THK) const {
    const int64_t rows = x_THK.size(0), half = config_.head_dim / 2;
    const Tensor i =
        at::arange(half, at::kDouble) * (-std::log(config_.attention_of(0).rope_theta) / static_cast<double>(half));
    const Tensor angle = (at::arange(rows, at::kDouble).unsqueeze(1) * i.exp().unsqueeze(0)).unsqueeze(1);
    const Tensor first = x_THK.narrow(2, 0, half), second = x_THK.narrow(2, half, half);
    return at::cat({first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()}, 2);
  }

  Tensor block(int64_t layer, const Tensor& hidden) const {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const int64_t rows = hidden.size(0), heads = config_.num_heads, groups = config_.num_kv_heads, K = config_.head_dim;
    const Tensor qkv = linear(layer, "qkv", norm(hidden, prefix + "input_norm"));
    const auto part = [&](int64_t begin, int64_t count) {
      return qkv.narrow(1, begin * K, count * K).reshape({rows, count, K});
    };
    const Tensor q = rotated(norm(part(0, heads), prefix + "q_norm"));
    const Tensor k = rotated(norm(part(heads, groups), prefix + "k_norm")).repeat_interleave(heads / groups, 1);
    const Tensor v = part(heads + groups, groups).repeat_interleave(heads / groups, 1);
    const Tensor future = at::full({rows, rows}, -INFINITY, at::kDouble).triu(1);
    const Tensor scores = at::matmul(q.transpose(0, 1), k.permute({1, 2, 0})) / std::sqrt(static_cast<double>(K));
    const Tensor attended = at::matmul(at::softmax(scores + future, -1), v.transpose(0, 1));
    const Tensor middle = hidden + linear(layer, "o", attended.transpose(0, 1).reshape({rows, heads * K}));
    const Tensor gate_up = linear(layer, "gate_up", norm(middle, prefix + "post_norm"));
    const int64_t F = config_.mlp;
    return middle + linear(layer, "down", at::silu(gate_up.narrow(1, 0, F)) * gate_up.narrow(1, F, F));
  }

  const model::ModelConfig config_;
  const model::AdapterWindows windows_;
  const std::vector<uint64_t> row_keys_;
  std::map<std::string, Tensor> weights_;
};

TrainerConfig imitation(uint64_t seed) {
  TrainerConfig config;
  config.seed = seed;
  config.loss.calculate_per_token_loss = true;
  config.loss.loss_type = "sft_loss";
  return config;
}

TEST(AdapterDropout, AStepIsThatOfAModelInFloat64ThatDropsTheSameElements) {
  const weights::SafetensorsFile golden(golden::directory() + "/lora/reference.safetensors");
  const Tensor ids = weights::read_tensor(golden, "seq0.input_ids");
  const auto* const first = ids.const_data_ptr<int32_t>();
  rl::Sample sample;
  sample.group_id = 6;
  sample.sample_id = 41;
  sample.prompt = rl::make_prompt({first[0]});
  sample.completion.assign(first + 1, first + ids.size(0));
  sample.loss_mask.assign(sample.completion.size(), 1);
  // Without dropout the reference is PEFT's model.
  const std::vector<uint64_t> no_keys(static_cast<size_t>(ids.size(0) - 1));
  EXPECT_NEAR(WideModel(PeftModel(0.0), no_keys).loss(ids).item<double>(),
              weights::read_tensor(golden, "seq0.loss").item<double>(), 1e-5);

  PeftModel m(kRate);
  const auto trainer = make_trainer(imitation(/*seed=*/9), *m.adapter, *m.model);
  trainer->step({&sample});  // the second step drops others than the first
  std::vector<uint64_t> keys = {dropout_key({.seed = 9, .step = 1}, RowOwner::kPromptOfGroup, 6, 0)};
  for (int64_t place = 0; place + 2 < ids.size(0); ++place) {
    keys.push_back(dropout_key({.seed = 9, .step = 1}, RowOwner::kSample, 41, place));
  }
  const WideModel wide(m, keys);
  const Tensor loss = wide.loss(ids);
  EXPECT_NEAR(trainer->step({&sample}).at("loss"), loss.item<double>(), 1e-5);
  EXPECT_GT(std::abs(loss.item<double>() - WideModel(PeftModel(0.0), no_keys).loss(ids).item<double>()), 1e-3);
  for (const auto& packed : m.adapter->layout().tensors) {
    const Tensor want = torch::autograd::grad({loss}, {wide.weight(packed.name)}, {}, /*retain_graph=*/true)[0];
    EXPECT_GT(want.abs().max().item<double>(), 1e-4) << packed.name;
    EXPECT_LT((trainer->gradient(packed.name).to(at::kDouble) - want).abs().max().item<double>(), 2e-5) << packed.name;
  }
}

// 240,000 elements have a share of dropped ones within 5 standard deviations, and so has agreement with what another
// row, step, sample, matrix or seed drops.
TEST(AdapterDropout, DropsTheShareThatItIsToldAndStreamsAreIndependent) {
  constexpr int64_t kRows = 1000, kWidth = 240;
  constexpr auto kCount = static_cast<double>(kRows * kWidth);
  const auto drawn = [&](double rate, const DropoutSeed& seed, uint64_t id, uint64_t stream, int64_t first) {
    std::vector<bool> kept;
    for (int64_t t = 0; t < kRows; ++t) {
      const uint64_t key = dropout_key(seed, RowOwner::kSample, id, first + t);
      for (int64_t c = 0; c < kWidth; ++c) kept.push_back(device::is_kept({.rate = rate, .stream = stream}, key, c));
    }
    return kept;
  };
  for (const double rate : {0.05, 0.5, 0.9}) {
    const std::vector<bool> kept = drawn(rate, {3, 5}, 7, 1, 0);
    const auto near = [&](double count, double share) {
      EXPECT_LT(std::abs(count - share * kCount), 5.0 * std::sqrt(share * (1.0 - share) * kCount)) << rate;
    };
    near(static_cast<double>(std::ranges::count(kept, false)), rate);
    for (const std::vector<bool>& other :
         {drawn(rate, {4, 5}, 7, 1, 0), drawn(rate, {3, 6}, 7, 1, 0), drawn(rate, {3, 5}, 8, 1, 0),
          drawn(rate, {3, 5}, 7, 2, 0), drawn(rate, {3, 5}, 7, 1, kRows)}) {
      double agree = 0.0;
      for (size_t i = 0; i < kept.size(); ++i) agree += kept[i] == other[i] ? 1.0 : 0.0;
      near(agree, rate * rate + (1.0 - rate) * (1.0 - rate));
    }
    EXPECT_TRUE(kept == drawn(rate, {3, 5}, 7, 1, 0)) << "the same again";
  }
}

// Every matrix of a model drops by streams of its own.
TEST(AdapterDropout, EveryModuleHasAStream) {
  model::ModelConfig config = model::small_config(3);
  config.lora = {.rank = 2, .alpha = 4.0, .target_modules = model::adaptable_modules(config)};
  const model::AdapterWindows windows = model::adapter_windows(config);
  std::set<uint64_t> streams;
  for (int64_t layer = 0; layer < 3; ++layer) {
    for (const char* matrix : {"qkv", "o", "gate_up", "down"}) {
      const std::string name = "layers." + std::to_string(layer) + "." + matrix;
      for (const model::AdapterWindow& window : windows.at(name)) {
        streams.insert(model::decoder::dropout_stream(layer, matrix) + static_cast<uint64_t>(window.begin));
      }
    }
  }
  EXPECT_EQ(streams.size(), 3U * 7U);
}

TEST(AdapterDropout, KeysOfATokenAreThoseOfItsSampleInAnyBatch) {
  std::vector<rl::Sample> samples = random_samples(4, /*num_groups=*/2, /*group_size=*/3);
  samples[4].sequence_begins = {static_cast<int64_t>(samples[4].completion.size()) - 2};
  const DropoutSeed seed = {.seed = 1, .step = 2};
  const PackedBatch all = pack_batch(pointers(samples));
  const Tensor keys = dropout_keys(all, seed);
  std::set<int64_t> different;
  for (size_t s = 0; s < samples.size(); ++s) {
    const PackedBatch alone = pack_batch(std::vector<const rl::Sample*>{&samples[s]});
    const Tensor own = dropout_keys(alone, seed);
    const auto rows = [](const Tensor& of, const RowRange& range) { return of.narrow(0, range.begin, range.count()); };
    EXPECT_TRUE(rows(own, alone.prompt_rows[0]).equal(rows(keys, all.prompt_rows[s]))) << s;
    EXPECT_TRUE(rows(own, alone.own_rows[0]).equal(rows(keys, all.own_rows[s]))) << s;
  }
  for (int64_t row = 0; row < keys.size(0); ++row) different.insert(keys[row].item<int64_t>());
  EXPECT_EQ(std::ssize(different), keys.size(0)) << "no two rows share a key";
  EXPECT_FALSE(dropout_keys(all, {.seed = 1, .step = 3}).equal(keys));
}

// The operation on every backend is the rule, element by element, also where the last columns are no whole block.
TEST(AdapterDropout, TheOperationIsTheRule) {
  constexpr int64_t kRows = 150, kWidth = 37;
  const device::Dropout dropout = {.rate = kRate, .stream = 11};
  const Tensor x = at::arange(kRows * kWidth, at::kFloat).reshape({kRows, kWidth}) / 64.0 + 1.0;
  const Tensor keys = at::arange(kRows, at::kLong) - 70;
  for (const device::Ops* ops : {&test_ops(), &reference_ops()}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const Tensor given = x.to(dtype), y = ops->dropout(given, keys, dropout);
      ASSERT_EQ(y.scalar_type(), dtype);
      const Tensor want = (given.to(at::kFloat) * dropout.scale()).to(dtype);
      for (int64_t i = 0; i < kRows * kWidth; ++i) {
        const bool kept = device::is_kept(dropout, static_cast<uint64_t>(i / kWidth - 70), i % kWidth);
        const auto value = y.view({-1})[i].item<float>();
        ASSERT_EQ(value, kept ? want.view({-1})[i].item<float>() : 0.0F) << ops->name() << ' ' << dtype << ' ' << i;
      }
    }
  }
}

struct DroppingModel {
  explicit DroppingModel(double rate) : config(model::small_config(2)) {
    config.lora = {.rank = 5, .alpha = 8.0, .target_modules = model::adaptable_modules(config), .dropout = rate};
    base.emplace(model::build_layout(config), at::kFloat);
    adapter.emplace(model::adapter_layout(config), at::kFloat);
    model::draw_weights(*base, 0.2, 11);
    model::draw_weights(*adapter, 0.2, 12);
    model = model::make_model(config, base->view().with(adapter->view()), test_ops());
  }
  // Returns the gradients of the step's first optimizer step.
  std::map<std::string, Tensor> step(const TrainerConfig& step, const std::vector<rl::Sample>& samples) {
    const auto trainer = make_trainer(step, *adapter, *model);
    trainer->step(pointers(samples));
    return gradients(*trainer, *adapter);
  }

  model::ModelConfig config;
  std::optional<weights::WeightStore> base, adapter;
  std::unique_ptr<model::Model> model;
};

TEST(AdapterDropout, TheGradientIsTheSameForRecomputedBlocksAndSmallMicroBatches) {
  const std::vector<rl::Sample> samples = random_samples(6, /*num_groups=*/2, /*group_size=*/3);
  TrainerConfig config = imitation(/*seed=*/5);
  const std::map<std::string, Tensor> kept = DroppingModel(kRate).step(config, samples);
  config.recompute_layers = 2;
  const auto recomputed = DroppingModel(kRate).step(config, samples);
  for (const auto& [name, gradient] : kept) EXPECT_TRUE(gradient.equal(recomputed.at(name))) << name;
  config.batch.max_tokens_per_gpu = 16;  // every sample, and each prompt, by itself
  EXPECT_LT(relative_difference(DroppingModel(kRate).step(config, samples), kept), 1e-5);
  config.seed = 6;
  EXPECT_GT(relative_difference(DroppingModel(kRate).step(config, samples), kept), 1e-2);
  EXPECT_GT(relative_difference(DroppingModel(0.0).step(config, samples), kept), 1e-2);
}

// The first step's ratio of a sample that these weights have sampled is 1, also in a micro-batch with one that older
// weights have sampled, whose ratio is of the forward with dropout.
TEST(AdapterDropout, TheRatioOfSamplesOnPolicyDoesNotDependOnTheirMicroBatch) {
  std::vector<rl::Sample> samples = random_samples(7, /*num_groups=*/2, /*group_size=*/2);
  for (rl::Sample& sample : samples) sample.versions = {{0, 7}};
  samples[1].versions = {{0, 6}};
  samples[2].versions = {{0, 6}};
  TrainerConfig config;
  config.seed = 5;
  const auto step = [&](int64_t max_tokens) {
    config.batch.max_tokens_per_gpu = max_tokens;
    DroppingModel dropping(kRate);
    const auto trainer = make_trainer(config, *dropping.adapter, *dropping.model);
    trainer->step(pointers(samples), RolloutLogprobs::kOfTheseWeights, 7);
    return gradients(*trainer, *dropping.adapter);
  };
  EXPECT_LT(relative_difference(step(16), step(4096)), 1e-5);
}

}  // namespace
}  // namespace tandem::trainer
