// The model against transformers (golden/reference): logits, log-probs, entropies, hidden states, greedy continuations,
// loss and the gradient of every parameter, on every backend.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/json.h"
#include "device/ops_aten.h"
#include "model/model.h"
#include "model/registry.h"
#include "tests/device/draw.h"
#include "tests/golden/golden.h"
#include "tests/model/families.h"
#include "tests/model/function_sink.h"
#include "tests/model/sequence_attention.h"
#include "tests/weights/tensor_files.h"
#include "weights/store.h"

namespace tandem::model {
namespace {

using at::Tensor;

constexpr int64_t kNumSequences = 5;
// Another correct float32 implementation stays within these tolerances.
constexpr double kLogitsTolerance = 1e-4, kHiddenTolerance = 1e-4, kLogprobTolerance = 5e-5, kGradientTolerance = 1e-5,
                 kLossTolerance = 1e-5;

struct Case {
  std::string model, backend;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.model << " on " << c.backend; }

std::vector<Case> cases() {
  std::vector<std::string> backends = device::cpu_isas();
  backends.emplace_back("aten");
  for (const std::string& name : device::device_backends()) backends.push_back(name);
  std::vector<Case> result;
  for (const std::string& model : kGoldenModels)
    for (const std::string& backend : backends) result.push_back({model, backend});
  return result;
}

struct Gradients {
  std::map<std::string, Tensor> by_name;
  FunctionSink sink(const weights::WeightStore& store) {
    for (const weights::PackedTensor& packed : store.layout().tensors)
      by_name[packed.name] = at::zeros(packed.shape, at::kFloat);
    return FunctionSink([this](const std::string& name) -> GradientTarget {
      return {.memory = by_name.at(name), .use = device::GradientUse::kAdd};
    });
  }
};

class GoldenModelTest : public testing::TestWithParam<Case> {
 protected:
  explicit GoldenModelTest(at::ScalarType dtype = at::kFloat)
      : config_(read_model_config(folder("models"))),
        store_(build_layout(config_), dtype),
        golden_(folder("reference") + "/reference.safetensors"),
        // ATen's thread pool costs more than it gives on tensors of this size.
        ops_(device::make_backend(GetParam().backend, GetParam().backend == "aten" ? 1 : 2)) {
    weights::load_hf_checkpoint(folder("models"), store_);
    if (ops_ != nullptr) model_ = make_model(config_, store_.view(), *ops_);
  }
  void SetUp() override {
    if (ops_ == nullptr) GTEST_SKIP() << device::why_missing(GetParam().backend);
  }

  static std::string folder(const std::string& kind) {
    return golden::directory() + "/" + kind + "/" + GetParam().model;
  }
  Tensor golden(const std::string& name) const { return weights::read_tensor(golden_, name); }
  Tensor sequence(int64_t i) const { return golden(fmt::format("seq{}.input_ids", i)).to(at::kInt); }

  Tensor hidden_of(const Tensor& ids_T) const {
    SequenceAttention attention(*ops_, config_, ids_T.size(0), store_.dtype());
    return forward_hidden(*model_, ids_T, int32_range(0, ids_T.size(0)), attention);
  }
  Tensor logits_of(const Tensor& ids_T) const { return model_->head(hidden_of(ids_T)); }

  void expect_near(const std::string& what, const Tensor& got, const Tensor& want, double tolerance) {
    ASSERT_EQ(got.sizes(), want.sizes()) << what;
    const double error = (got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
    double& worst = used_[what];
    worst = std::isnan(error) ? INFINITY : std::max(worst, error / tolerance);
    EXPECT_LE(error, tolerance) << what;
  }
  void TearDown() override {
    for (const auto& [what, share] : used_)
      fmt::print("[    used  ] {:<28} {:6.2f} % of its tolerance\n", what, 100.0 * share);
  }

  ModelConfig config_;
  weights::WeightStore store_;
  weights::SafetensorsFile golden_;
  std::unique_ptr<device::Ops> ops_;
  std::unique_ptr<Model> model_;
  std::map<std::string, double> used_;
};

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return as_test_name(info.param.model + "_" + info.param.backend);
}
INSTANTIATE_TEST_SUITE_P(Models, GoldenModelTest, testing::ValuesIn(cases()), case_name);

TEST_P(GoldenModelTest, LogitsLogprobsAndEntropiesAreTransformers) {
  for (int64_t i = 0; i < kNumSequences; ++i) {
    const Tensor ids = sequence(i), logits = logits_of(ids);
    const int64_t length = ids.size(0);
    const std::string prefix = fmt::format("seq{}.", i);
    Tensor targets = at::full({length}, -1, at::TensorOptions(at::kInt));
    targets.narrow(0, 0, length - 1).copy_(ids.narrow(0, 1, length - 1));
    expect_near("logits", logits, golden(prefix + "logits"), kLogitsTolerance);
    for (const double temperature : {1.0, 0.7}) {
      const Tensor logp = at::empty({length}), entropy = at::empty({length}), lse = at::empty({length});
      ops_->logprob(logits, targets, temperature, logp, entropy, lse);
      for (const std::string suffix : {"", "_f64"}) {
        const std::string at_temperature = fmt::format("_t{:.1f}{}", temperature, suffix);
        expect_near("entropy" + suffix, entropy, golden(prefix + "entropy" + at_temperature), kLogprobTolerance);
        if (length == 1) continue;
        expect_near("logp" + suffix, logp.narrow(0, 0, length - 1), golden(prefix + "logp" + at_temperature),
                    kLogprobTolerance);
      }
    }
  }
}

TEST_P(GoldenModelTest, HiddenStatesOfEveryLayerAreTransformers) {
  const c10::NoGradGuard no_graph;
  const Tensor ids = sequence(2), positions = int32_range(0, ids.size(0));
  SequenceAttention attention(*ops_, config_, ids.size(0), store_.dtype());
  Tensor hidden = model_->embed(ids);
  expect_near("hidden.0", hidden, golden("seq2.hidden.0"), 0.0);
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    hidden = model_->block(layer, hidden, positions, attention);
    const bool last = layer + 1 == config_.num_layers;  // the reference has the final norm in its last one
    expect_near(fmt::format("hidden.{}", layer + 1), last ? model_->final_norm(hidden, ids.size(0)) : hidden,
                golden(fmt::format("seq2.hidden.{}", layer + 1)), kHiddenTolerance);
  }
}

TEST_P(GoldenModelTest, GreedyContinuationsAreTransformers) {
  const c10::NoGradGuard no_graph;
  for (int64_t i = 0; i < kNumSequences; ++i) {
    const Tensor prompt = sequence(i), want = golden(fmt::format("seq{}.greedy_ids", i));
    const Tensor want_logp = golden(fmt::format("seq{}.greedy_logp", i));
    SequenceAttention attention(*ops_, config_, prompt.size(0) + want.size(0), store_.dtype());
    Tensor ids = prompt;
    int64_t position = 0;
    const Tensor logp = at::empty({want.size(0)});
    for (int64_t step = 0; step < want.size(0); ++step) {
      const Tensor hidden = forward_hidden(*model_, ids, int32_range(position, position + ids.size(0)), attention);
      const Tensor logits = model_->head(hidden.narrow(0, ids.size(0) - 1, 1).contiguous());
      position += ids.size(0);
      ids = logits.argmax(1).to(at::kInt);
      ASSERT_EQ(ids.item<int64_t>(), want[step].item<int64_t>()) << "sequence " << i << ", token " << step;
      ops_->logprob(logits, ids, 1.0, logp.narrow(0, step, 1), Tensor(), at::empty({1}));
    }
    expect_near("greedy_logp", logp, want_logp, kLogprobTolerance);
  }
}

TEST_P(GoldenModelTest, LossAndTheGradientOfEveryParameterAreTransformers) {
  Gradients gradients;
  FunctionSink sink = gradients.sink(store_);
  model_->set_gradient_sink(&sink);
  const Tensor ids_BT = golden("batch.input_ids").to(at::kInt), labels_BT = golden("batch.labels").to(at::kInt);
  const Tensor mask_BT = golden("batch.attention_mask");
  const int64_t num_targets = labels_BT.narrow(1, 1, labels_BT.size(1) - 1).ne(-100).sum().item<int64_t>();
  double loss = 0.0;
  for (int64_t row = 0; row < ids_BT.size(0); ++row) {
    const int64_t length = mask_BT[row].sum().item<int64_t>();
    const Tensor ids = ids_BT[row].narrow(0, 0, length).contiguous(), positions = int32_range(0, length);
    Tensor targets = at::full({length}, -1, at::TensorOptions(at::kInt));
    targets.narrow(0, 0, length - 1).copy_(labels_BT[row].narrow(0, 1, length - 1).clamp_min(-1));

    SequenceAttention attention(*ops_, config_, length, store_.dtype());
    const Tensor embedded = model_->embed(ids).set_requires_grad(true);
    Tensor hidden = embedded;
    for (int64_t layer = 0; layer < config_.num_layers; ++layer)
      hidden = model_->block(layer, hidden, positions, attention);
    const Tensor normed = model_->final_norm(hidden, ids.size(0));
    const Tensor logits = model_->head(normed.detach());
    const Tensor logp = at::empty({length}), lse = at::empty({length});
    ops_->logprob(logits, targets, 1.0, logp, Tensor(), lse);
    loss -= logp.sum(at::kDouble).item<double>() / static_cast<double>(num_targets);

    const Tensor dlogp = at::full({length}, -1.0 / static_cast<double>(num_targets));
    const Tensor dlogits = ops_->logprob_backward(logits, targets, 1.0, dlogp, Tensor(), Tensor(), lse, store_.dtype());
    const Tensor dnormed = model_->head_backward(dlogits, normed.detach());
    const auto dembedded = torch::autograd::grad({normed}, {embedded}, {dnormed});
    model_->embed_backward(dembedded[0], ids);
  }
  const base::Json reference = base::read_json_file(folder("reference") + "/reference.json");
  EXPECT_NEAR(loss, reference["loss"].get<double>(), kLossTolerance);
  EXPECT_NEAR(loss, reference["loss_f64"].get<double>(), kLossTolerance);
  for (const weights::PackedTensor& packed : store_.layout().tensors)
    for (const weights::Slice& slice : packed.slices)
      expect_near("gradients", gradients.by_name.at(packed.name).narrow(0, slice.row_begin, slice.shape[0]),
                  golden("grad." + slice.hf_name), kGradientTolerance);
}

class GoldenBFloat16Test : public GoldenModelTest {
 protected:
  GoldenBFloat16Test() : GoldenModelTest(at::kBFloat16) {}
};
std::vector<Case> bfloat16_cases() {
  std::vector<Case> all = cases();
  // Only models whose checkpoint is bfloat16 come with transformers' logits in bfloat16.
  std::erase_if(all, [](const Case& c) {
    return read_model_config(golden::directory() + "/models/" + c.model).dtype != Dtype::kBFloat16;
  });
  return all;
}
INSTANTIATE_TEST_SUITE_P(Models, GoldenBFloat16Test, testing::ValuesIn(bfloat16_cases()), case_name);

// In bfloat16 single elements say nothing. The rms distance from the exact logits (here the float32 ones, which are a
// thousand times closer) may be at most twice that of transformers' own bfloat16 forward.
TEST_P(GoldenBFloat16Test, LogitsAreAsCloseToTheExactOnesAsTransformersOwn) {
  double ours = 0.0, theirs = 0.0;
  int64_t count = 0;
  for (int64_t i = 0; i < kNumSequences; ++i) {
    const std::string prefix = fmt::format("seq{}.", i);
    const Tensor exact = golden(prefix + "logits").to(at::kDouble), logits = logits_of(sequence(i));
    ours += (logits.to(at::kDouble) - exact).square().sum().item<double>();
    theirs += (golden(prefix + "logits_bf16").to(at::kDouble) - exact).square().sum().item<double>();
    count += exact.numel();
  }
  ours = std::sqrt(ours / static_cast<double>(count));
  theirs = std::sqrt(theirs / static_cast<double>(count));
  fmt::print("[    used  ] rms error of logits: {:.4f}, transformers' bfloat16: {:.4f}\n", ours, theirs);
  EXPECT_LE(ours, 2.0 * theirs);
}

}  // namespace
}  // namespace tandem::model
