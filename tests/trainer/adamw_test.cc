// Tests of the optimizer against torch.optim.AdamW in double, in both store dtypes, and of its restart.
#include "trainer/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/trainer/fixture.h"
#include "tests/trainer/optimizer_fixture.h"

namespace tandem::trainer {
namespace {

std::vector<double> doubles(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kDouble).flatten();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

// torch.optim.AdamW in double, on one tensor.
struct Reference {
  std::vector<double> weight, m, v;
  void step(const std::vector<double>& gradient, double lr, double weight_decay, const AdamWConfig& c, int64_t t) {
    m.resize(weight.size());
    v.resize(weight.size());
    for (size_t i = 0; i < weight.size(); ++i) {
      weight[i] -= lr * weight_decay * weight[i];
      m[i] = c.beta1 * m[i] + (1 - c.beta1) * gradient[i];
      v[i] = c.beta2 * v[i] + (1 - c.beta2) * gradient[i] * gradient[i];
      const double m_hat = m[i] / (1 - std::pow(c.beta1, t)), v_hat = v[i] / (1 - std::pow(c.beta2, t));
      weight[i] -= lr * m_hat / (std::sqrt(v_hat) + c.eps);
    }
  }
};

class AdamWTest : public testing::TestWithParam<at::ScalarType> {};

TEST_P(AdamWTest, FollowsTheReferenceAndDecaysWhatTheLayoutSays) {
  struct Decay {
    bool all, matrix, norm;
  };
  for (const Decay& decay :
       {Decay{.all = false, .matrix = true, .norm = false}, {false, false, true}, {true, false, false}}) {
    std::mt19937 random(11);
    weights::Layout layout = layout_of(kSmallShapes);
    for (weights::PackedTensor& packed : layout.tensors)
      packed.decays = packed.name == "matrix" ? decay.matrix : decay.norm;
    weights::WeightStore store(layout, GetParam());
    for (const char* name : {"matrix", "norm"}) fill_random(store.tensor(name), random);
    const AdamWConfig config{.weight_decay = 0.1, .weight_decay_all = decay.all};
    AdamW adamw(config, store, test_ops());
    std::map<std::string, Reference> reference;
    for (const char* name : {"matrix", "norm"}) reference[name].weight = doubles(store.tensor(name));
    const double scale = 0.25, lr = 0.01;
    for (int64_t t = 1; t <= 5; ++t) {
      adamw.begin_step();
      double sum_of_squares = 0;
      for (const char* name : {"matrix", "norm"}) {
        at::Tensor gradient = adamw.gradient(name);
        ASSERT_EQ(gradient.abs().sum().item<float>(), 0.0F);
        fill_random(gradient, random);
        for (double g : doubles(gradient)) sum_of_squares += g * g;
        ASSERT_TRUE(adamw.gradient(name).equal(gradient)) << "a second request in a step must not clear it";
        const bool decays = decay.all || (std::string(name) == "matrix" ? decay.matrix : decay.norm);
        reference[name].step(doubles(gradient.mul(scale)), lr, decays ? 0.1 : 0.0, config, t);
      }
      EXPECT_NEAR(adamw.gradient_norm(), std::sqrt(sum_of_squares), 1e-5);
      adamw.step(lr, scale);
    }
    const std::map<std::string, at::Tensor> state = named_state(adamw);
    for (const char* name : {"matrix", "norm"}) {
      const std::vector<double> master = doubles(state.at(std::string("master.") + name));
      for (size_t i = 0; i < master.size(); ++i) EXPECT_NEAR(master[i], reference[name].weight[i], 2e-6);
      EXPECT_TRUE(store.tensor(name).equal(state.at(std::string("master.") + name).to(GetParam())))
          << "the store is the rounding of its master";
    }
  }
}

TEST_P(AdamWTest, ATensorWithoutGradientCountsAsZero) {
  std::mt19937 random(12);
  weights::WeightStore store(layout_of(kSmallShapes), GetParam());
  for (const char* name : {"matrix", "norm"}) fill_random(store.tensor(name), random);
  AdamW adamw({.weight_decay = 0.0}, store, test_ops());
  adamw.begin_step();
  adamw.gradient("matrix").fill_(1.0F);
  adamw.gradient("norm").fill_(100.0F);
  adamw.begin_step();  // that was another step
  adamw.gradient("matrix").fill_(1.0F);
  const at::Tensor norm = store.tensor("norm").clone();
  EXPECT_NEAR(adamw.gradient_norm(), std::sqrt(48.0), 1e-6);
  adamw.step(0.1, 1.0);
  EXPECT_TRUE(store.tensor("norm").equal(norm));
}

TEST_P(AdamWTest, RestoredStateContinuesBitForBit) {
  std::mt19937 random(13);
  weights::WeightStore store(layout_of(kSmallShapes), GetParam()), other(layout_of(kSmallShapes), GetParam());
  for (const char* name : {"matrix", "norm"}) {
    fill_random(store.tensor(name), random);
    other.tensor(name).zero_();
  }
  AdamW first({}, store, test_ops()), second({}, other, test_ops());
  const auto step = [](AdamW& adamw, uint32_t seed) {
    std::mt19937 values(seed);
    adamw.begin_step();
    for (const char* name : {"matrix", "norm"}) fill_random(adamw.gradient(name), values);
    adamw.step(0.01, 1.0);
  };
  step(first, 1);
  for (const auto& [name, tensor] : named_state(second)) tensor.copy_(named_state(first).at(name));
  second.restore(first.num_steps());
  for (const char* name : {"matrix", "norm"}) EXPECT_TRUE(other.tensor(name).equal(store.tensor(name)));
  step(first, 2);
  step(second, 2);
  for (const char* name : {"matrix", "norm"}) EXPECT_TRUE(other.tensor(name).equal(store.tensor(name)));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AdamWTest, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace tandem::trainer
