// The model's own promises: the forward is the same with and without gradients, graphs hold what they say and no
// longer, and gradients reach the sink.
#include "model/model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "device/ops_aten.h"
#include "model/autograd.h"
#include "model/registry.h"
#include "tandem/error.h"
#include "tests/device/draw.h"
#include "tests/model/function_sink.h"
#include "tests/model/random_weights.h"
#include "tests/model/sequence_attention.h"
#include "tests/model/small_models.h"

namespace tandem::model {
namespace {

using at::Tensor;
using device::same_bits;

constexpr uint64_t kSeed = 3;

class ModelTest : public testing::TestWithParam<std::string> {
 protected:
  ModelTest() : config_(small_config(/*num_layers=*/2, GetParam())), store_(build_layout(config_), at::kBFloat16) {
    draw_weights(store_, config_.initializer_range, kSeed);
    model_ = make_model(config_, store_.view(), *ops_);
  }

  Tensor hidden(int64_t num_tokens) {
    return device::TestDraw(kSeed).normal({num_tokens, config_.hidden}, at::kBFloat16);
  }
  SequenceAttention attention() const { return {*ops_, config_, 64, at::kBFloat16}; }
  // The sink keeps the gradients that it made. Each holds NaN until something is added.
  FunctionSink sink_ = FunctionSink([this](const std::string& name) -> GradientTarget {
    Tensor& gradient = gradients_[name];
    if (gradient.defined()) return {.memory = gradient, .use = device::GradientUse::kAdd};
    gradient = at::full(store_.tensor(name).sizes(), std::numeric_limits<float>::quiet_NaN(), at::kFloat);
    return {.memory = gradient, .use = device::GradientUse::kSet};
  });

  ModelConfig config_;
  std::unique_ptr<device::Ops> ops_ = device::make_cpu_ops("auto", 2);
  weights::WeightStore store_;
  std::unique_ptr<Model> model_;
  std::map<std::string, Tensor> gradients_;
};

INSTANTIATE_TEST_SUITE_P(Families, ModelTest, testing::ValuesIn(kArchitectures),
                         [](const auto& info) { return info.param; });

TEST_P(ModelTest, BlockGivesTheSameBitsWithAndWithoutGradients) {
  const Tensor x = hidden(23), positions = int32_range(0, 23);
  SequenceAttention with = attention(), without = attention();
  const Tensor differentiable = model_->block(1, x.detach().set_requires_grad(true), positions, with);
  EXPECT_TRUE(differentiable.requires_grad());
  const c10::NoGradGuard no_graph;
  const Tensor plain = model_->block(1, x, positions, without);
  EXPECT_FALSE(plain.requires_grad());
  EXPECT_TRUE(same_bits(plain, differentiable.detach())) << "seed " << kSeed;
}

TEST_P(ModelTest, EveryWeightOfABlockGetsAGradient) {
  model_->set_gradient_sink(&sink_);
  SequenceAttention attn_out = attention();
  const Tensor x = hidden(23).set_requires_grad(true);
  const Tensor y = model_->block(0, x, int32_range(0, 23), attn_out);
  const Tensor dx = torch::autograd::grad({y}, {x}, {hidden(23)})[0];
  EXPECT_EQ(dx.scalar_type(), at::kBFloat16);
  size_t num_weights = 0;
  for (const weights::PackedTensor& packed : store_.layout().tensors) {
    if (!packed.name.starts_with("layers.0.")) continue;
    ++num_weights;
    ASSERT_TRUE(gradients_.contains(packed.name)) << packed.name;
    EXPECT_GT(gradients_[packed.name].abs().sum().item<float>(), 0.0F) << packed.name;
  }
  EXPECT_EQ(gradients_.size(), num_weights);
}

// A bias that is not added, or a norm that is not applied, would make one family another.
TEST_P(ModelTest, EveryWeightOfABlockCounts) {
  const c10::NoGradGuard no_graph;
  const Tensor x = hidden(9), positions = int32_range(0, 9);
  SequenceAttention before = attention();
  const Tensor y = model_->block(1, x, positions, before);
  for (const weights::PackedTensor& packed : store_.layout().tensors) {
    if (!packed.name.starts_with("layers.1.")) continue;
    for (const weights::Slice& slice : packed.slices) {
      const Tensor rows = store_.slice(packed, slice), kept = rows.clone();
      rows.mul_(-2);
      SequenceAttention after = attention();
      EXPECT_FALSE(same_bits(model_->block(1, x, positions, after), y)) << slice.hf_name;
      rows.copy_(kept);
    }
  }
}

TEST_P(ModelTest, ATiedHeadAddsItsGradientToTheEmbedding) {
  model_->set_gradient_sink(&sink_);
  const Tensor x = hidden(5), dlogits = device::TestDraw(kSeed).normal({5, config_.vocab}, at::kFloat);
  const Tensor dx = model_->head_backward(dlogits, x);
  EXPECT_EQ(dx.scalar_type(), at::kBFloat16);
  EXPECT_EQ(dx.sizes(), x.sizes());
  const Tensor of_head = gradients_.at("embed").clone();
  EXPECT_EQ(gradients_.size(), 1U);
  model_->embed_backward(at::ones_like(x), device::to_tensor({4, 0, 4, 69, 1}));
  const Tensor added = gradients_.at("embed") - of_head;
  // Gemma's embeddings are multiplied by a number, and so are their gradients.
  const double scale = family_of(config_).scales_embeddings
                           ? at::full({}, std::sqrt(static_cast<double>(config_.hidden)), at::kBFloat16).item<double>()
                           : 1.0;
  EXPECT_NEAR(added[4].sum().item<double>(), 2.0 * scale * static_cast<double>(config_.hidden), 1e-3);
  EXPECT_NEAR(added[3].abs().sum().item<double>(), 0.0, 1e-6);
}

TEST_P(ModelTest, HeadGivesFloat32LogitsWithoutAGraph) {
  const Tensor logits = model_->head(hidden(3).set_requires_grad(true));
  EXPECT_EQ(logits.scalar_type(), at::kFloat);
  EXPECT_EQ(logits.sizes(), at::IntArrayRef({3, config_.vocab}));
  EXPECT_FALSE(logits.requires_grad());
}

TEST_P(ModelTest, AGradientWithoutASinkIsABug) {
  EXPECT_THROW(model_->head_backward(at::zeros({1, config_.vocab}), hidden(1)), BugError);
}

TEST_P(ModelTest, NewWeightsAreSeenAtOnceAndTheirVersionIsReported) {
  const Tensor x = hidden(2), before = model_->head(x);
  EXPECT_EQ(model_->weight_version(), 0U);
  weights::WeightStore other(build_layout(config_), at::kBFloat16);
  weights::initialize_random(other, config_.initializer_range, kSeed + 1);
  other.set_version(9);
  model_->set_weights(other.view());
  EXPECT_EQ(model_->weight_version(), 9U);
  EXPECT_FALSE(same_bits(model_->head(x), before));
  // The optimizer writes in place, and the view shows the new bytes.
  other.tensor("embed").zero_();
  EXPECT_EQ(model_->head(x).abs().sum().item<float>(), 0.0F);
}

TEST_P(ModelTest, AnArchitectureWithoutAForwardIsABug) {
  ModelConfig unknown = config_;
  unknown.architecture = "OtherForCausalLM";
  EXPECT_THROW(make_model(unknown, store_.view(), *ops_), BugError);
}

// Computes y = 2 x, and keeps `kept` until backward.
Tensor doubled(const Tensor& x, const Tensor& kept = {}) {
  return differentiable({x}, [&] {
    return Piece{{x * 2.0}, [kept](const Tensors& d) -> Tensors { return {d[0] * 2.0}; }};
  })[0];
}

TEST(Differentiable, ChainsAndBroadcastGradientsWork) {
  const Tensor x = at::zeros({3}).set_requires_grad(true);
  const Tensor y = doubled(doubled(x));
  EXPECT_EQ(torch::autograd::grad({y.sum()}, {x})[0].sum().item<float>(), 12.0F);
}

TEST(Differentiable, WhatAPieceKeepsIsFreedByBackwardOrAtOnceWithoutGradients) {
  Tensor kept = at::zeros({3});
  const Tensor x = at::zeros({3}).set_requires_grad(true);
  const Tensor y = doubled(x, kept);
  EXPECT_EQ(kept.use_count(), 2U);
  torch::autograd::grad({y}, {x}, {at::ones_like(y)});
  EXPECT_EQ(kept.use_count(), 1U);
  const Tensor constant = doubled(at::zeros({3}), kept);
  EXPECT_FALSE(constant.requires_grad());
  EXPECT_EQ(kept.use_count(), 1U);
  const c10::NoGradGuard no_graph;
  EXPECT_FALSE(doubled(x, kept).requires_grad());
  EXPECT_EQ(kept.use_count(), 1U);
}

TEST(Differentiable, ReturningAnInputOrItsViewIsABug) {
  const Tensor x = at::zeros({4}).set_requires_grad(true);
  const Backward backward = [](const Tensors& d) -> Tensors { return d; };
  EXPECT_THROW(differentiable({x}, [&] { return Piece{{x}, backward}; }), BugError);
  EXPECT_THROW(differentiable({x}, [&] { return Piece{{x.view({2, 2})}, backward}; }), BugError);
}

}  // namespace
}  // namespace tandem::model
