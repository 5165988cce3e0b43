// Tests that the chosen experts are those of float64 (golden/moe), for planted ties and wide logits, and for every
// token of the golden sparse models.
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "model/model.h"
#include "model/registry.h"
#include "tests/device/draw.h"
#include "tests/golden/golden.h"
#include "tests/model/families.h"
#include "tests/model/sequence_attention.h"
#include "tests/sim/forwarding_ops.h"
#include "tests/weights/tensor_files.h"
#include "weights/store.h"

namespace tandem::model {
namespace {

using at::Tensor;

std::vector<std::string> backends() {
  std::vector<std::string> names = device::cpu_isas();
  names.emplace_back("aten");
  for (const std::string& name : device::device_backends()) names.push_back(name);
  return names;
}

class GoldenExperts : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (ops_ == nullptr) GTEST_SKIP() << device::why_missing(GetParam());
  }
  static std::string folder() { return golden::directory() + "/moe/"; }
  // The largest difference as a share of the largest number.
  static double difference(const Tensor& got, const Tensor& want) {
    const Tensor wide = want.to(at::kDouble);
    return (got.to(at::kDouble) - wide).abs().max().item<double>() / std::max(1e-3, wide.abs().max().item<double>());
  }

  std::unique_ptr<device::Ops> ops_ = device::make_backend(GetParam(), GetParam() == "aten" ? 1 : 2);
};
INSTANTIATE_TEST_SUITE_P(Backends, GoldenExperts, testing::ValuesIn(backends()),
                         [](const auto& info) { return as_test_name(info.param); });

TEST_P(GoldenExperts, ChoicesWeightsAndTheirGradientsAreThoseOfFloat64) {
  const weights::SafetensorsFile file(folder() + "routing.safetensors");
  const auto read = [&](const std::string& name) { return weights::read_tensor(file, name); };
  for (const int64_t X : {8, 16, 128}) {
    for (const int64_t k : {1, 2, 4, 8}) {
      const std::string prefix = fmt::format("x{}.k{}.", X, k);
      SCOPED_TRACE(prefix);
      const Tensor logits = read(prefix + "logits"), dweights = read(prefix + "dweights");
      for (const bool normalises : {true, false}) {
        const std::string rule_name = normalises ? "normed." : "unnormed.";
        const device::RouteRule rule{.chosen = k, .normalises = normalises};
        const device::Routing routing = ops_->route(logits, rule);
        EXPECT_TRUE(routing.ids_TC.equal(read(prefix + "ids")));
        EXPECT_LE(difference(routing.weights_TC, read(prefix + rule_name + "weights")), 4e-6);
        const Tensor dlogits = ops_->route_backward(dweights, logits, routing, rule, at::kFloat);
        EXPECT_LE(difference(dlogits, read(prefix + rule_name + "dlogits")), 4e-6);
      }
    }
  }
}

class RecordingRoutes final : public sim::ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  device::Routing route(const Tensor& logits_TX, const device::RouteRule& rule) const override {
    device::Routing routing = inner_.route(logits_TX, rule);
    ids.push_back(routing.ids_TC);
    return routing;
  }
  mutable std::vector<Tensor> ids;  // of each layer
};

TEST_P(GoldenExperts, EveryTokenOfTheGoldenModelsChoosesThoseOfFloat64) {
  const c10::NoGradGuard no_graph;
  const weights::SafetensorsFile file(folder() + "routes.safetensors");
  for (const std::string name : {"qwen3-moe", "qwen3-moe-unnormed"}) {
    const std::string directory = golden::directory() + "/models/" + name;
    const ModelConfig config = read_model_config(directory);
    weights::WeightStore store(build_layout(config), at::kFloat);
    weights::load_hf_checkpoint(directory, store);
    const RecordingRoutes ops(*ops_);
    const auto model = make_model(config, store.view(), ops);
    const weights::SafetensorsFile reference(golden::directory() + "/reference/" + name + "/reference.safetensors");
    for (int64_t i = 0; i < 5; ++i) {
      const Tensor ids = weights::read_tensor(reference, fmt::format("seq{}.input_ids", i)).to(at::kInt);
      SequenceAttention attention(ops, config, ids.size(0), store.dtype());
      ops.ids.clear();
      forward_hidden(*model, ids, int32_range(0, ids.size(0)), attention);
      ASSERT_EQ(static_cast<int64_t>(ops.ids.size()), config.num_layers);
      for (int64_t layer = 0; layer < config.num_layers; ++layer) {
        const std::string experts = fmt::format("{}.seq{}.experts.{}", name, i, layer);
        EXPECT_TRUE(ops.ids[static_cast<size_t>(layer)].equal(weights::read_tensor(file, experts))) << experts;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::model
