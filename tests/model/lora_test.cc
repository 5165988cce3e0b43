// Adapters: the matrices that have one, PEFT's files, and that the model computes what PEFT computes.
#include "model/lora.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <set>
#include <tuple>
#include <utility>

#include "base/files.h"
#include "base/json.h"
#include "device/ops_aten.h"
#include "model/model.h"
#include "model/peft.h"
#include "model/registry.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"
#include "tests/device/draw.h"
#include "tests/golden/golden.h"
#include "tests/model/function_sink.h"
#include "tests/model/random_weights.h"
#include "tests/model/sequence_attention.h"
#include "tests/model/small_models.h"
#include "tests/weights/tensor_files.h"
#include "weights/store.h"

namespace tandem::model {
namespace {

using at::Tensor;
using Names = std::vector<std::string>;

const Names kAll = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};

ModelConfig with_lora(ModelConfig config, const Names& targets, int64_t rank = 4, double alpha = 8.0) {
  config.lora = {.rank = rank, .alpha = alpha, .target_modules = targets};
  return config;
}

TEST(Lora, EveryMatrixOfABlockButARouterCanHaveAnAdapterAndExpertsAreNamed) {
  const Names of_attention(kAll.begin(), kAll.begin() + 4);
  for (const std::string& architecture : kUnfusedArchitectures) {
    const ModelConfig config = small_config(3, architecture);
    EXPECT_EQ(adaptable_modules(config), kAll) << architecture;
    EXPECT_EQ(all_linear_modules(config), config.experts ? of_attention : kAll) << architecture;
    EXPECT_EQ(parse_target_modules({"all-linear"}, config, ""), all_linear_modules(config)) << architecture;
    EXPECT_EQ(parse_target_modules({"down_proj,gate_proj"}, config, ""), (Names{"gate_proj", "down_proj"}));
    EXPECT_FALSE(adapts_experts(config)) << architecture;
    EXPECT_FALSE(adapts_experts(with_lora(config, of_attention))) << architecture;
    EXPECT_EQ(adapts_experts(with_lora(config, {"o_proj", "up_proj"})), config.experts.has_value()) << architecture;
  }
}

TEST(Lora, TheTensorsArePeftsAndThePackedOnesHaveNoGaps) {
  const ModelConfig config = with_lora(small_config(2), {"q_proj", "v_proj", "down_proj"});
  const weights::Layout layout = adapter_layout(config);
  ASSERT_EQ(layout.tensors.size(), 8U);
  const weights::PackedTensor& a = layout.find("layers.1.qkv.lora_a");
  EXPECT_EQ(a.shape, (std::vector<int64_t>{8, 48}));
  ASSERT_EQ(a.slices.size(), 2U);
  EXPECT_EQ(a.slices[1].hf_name, "base_model.model.model.layers.1.self_attn.v_proj.lora_A.weight");
  EXPECT_EQ(a.slices[1].row_begin, 4);
  const weights::PackedTensor& b = layout.find("layers.1.qkv.lora_b");
  EXPECT_EQ(b.shape, (std::vector<int64_t>{64 + 32, 4}));
  EXPECT_EQ(b.slices[1].row_begin, 64);
  EXPECT_TRUE(a.decays && b.decays);
  EXPECT_EQ(layout.find("layers.0.down.lora_b").slices.front().hf_name,
            "base_model.model.model.layers.0.mlp.down_proj.lora_B.weight");
  // The rows of v come after those of q and k.
  const AdapterWindows windows = adapter_windows(config);
  ASSERT_EQ(windows.at("layers.1.qkv").size(), 2U);
  EXPECT_EQ(windows.at("layers.1.qkv")[1].begin, 64 + 32);
  EXPECT_EQ(windows.at("layers.1.qkv")[1].count, 32);
  EXPECT_FALSE(windows.contains("layers.1.gate_up"));
}

// A has the modules of an expert and then those of the next, B one module of all experts and then the next.
TEST(Lora, EachExpertHasItsOwnAAndB) {
  ModelConfig config = small_config(2, "Qwen3MoeForCausalLM");  // six experts, 80 wide
  config.experts->width = 40;
  config = with_lora(config, {"gate_proj", "up_proj", "down_proj"});
  const weights::Layout layout = adapter_layout(config);
  ASSERT_EQ(layout.tensors.size(), 8U);
  const auto name = [](const std::string& rest) { return "base_model.model.model.layers.1.mlp.experts." + rest; };
  const weights::PackedTensor& a = layout.find("layers.1.experts_gate_up.lora_a");
  EXPECT_EQ(a.shape, (std::vector<int64_t>{6 * 2 * 4, 48}));
  EXPECT_EQ(a.slices[7].hf_name, name("3.up_proj.lora_A.weight"));
  EXPECT_EQ(a.slices[7].row_begin, 7 * 4);
  const weights::PackedTensor& b = layout.find("layers.1.experts_gate_up.lora_b");
  EXPECT_EQ(b.shape, (std::vector<int64_t>{6 * 2 * 40, 4}));
  EXPECT_EQ(b.slices[9].hf_name, name("3.up_proj.lora_B.weight"));
  EXPECT_EQ(b.slices[9].row_begin, 9 * 40);
  EXPECT_EQ(layout.find("layers.1.experts_down.lora_a").shape, (std::vector<int64_t>{6 * 4, 40}));
  EXPECT_EQ(layout.find("layers.1.experts_down.lora_b").shape, (std::vector<int64_t>{6 * 48, 4}));
  // Windows are columns of one expert's result.
  const AdapterWindows windows = adapter_windows(config);
  ASSERT_EQ(windows.at("layers.1.experts_gate_up").size(), 2U);
  EXPECT_EQ(windows.at("layers.1.experts_gate_up")[1].begin, 40);
  EXPECT_EQ(windows.at("layers.1.experts_gate_up")[1].count, 40);
  EXPECT_EQ(windows.at("layers.1.experts_down").size(), 1U);
  EXPECT_FALSE(windows.contains("layers.1.router"));
}

// Every matrix is found again by its name in PEFT's files, wherever its parts lie.
TEST(Lora, AdaptedMatricesAreThoseOfTheLayouts) {
  for (const std::string& architecture : kUnfusedArchitectures) {
    const ModelConfig config = with_lora(small_config(2, architecture), {"k_proj", "gate_proj", "up_proj"});
    const weights::Layout base = build_layout(config), adapter = adapter_layout(config);
    const auto name_at = [](const weights::PackedTensor& packed, int64_t row) {
      const auto slice = std::ranges::find(packed.slices, row, &weights::Slice::row_begin);
      return slice == packed.slices.end() ? "nothing" : slice->hf_name;
    };
    std::set<std::string> names;
    for (const AdaptedMatrix& m : adapted_matrices(config)) {
      const std::string weight = name_at(base.find(m.packed_name), m.row);
      const std::string module = "base_model.model." + weight.substr(0, weight.rfind('.'));
      EXPECT_EQ(name_at(adapter.find(m.packed_name + kLoraA), m.a_row), module + ".lora_A.weight");
      EXPECT_EQ(name_at(adapter.find(m.packed_name + kLoraB), m.b_row), module + ".lora_B.weight");
      EXPECT_EQ(m.num_rows, module.ends_with("k_proj") ? 32 : 80);
      names.insert(module);
    }
    EXPECT_EQ(names.size(), config.experts ? 2U * (1 + 2 * 6) : 2U * 3) << architecture;
  }
}

TEST(Lora, TargetModulesAreNamesOfTheModel) {
  const ModelConfig config = small_config();
  const auto parse = [&](const Names& names) { return parse_target_modules(names, config, "--target-modules"); };
  EXPECT_EQ(parse({"all-linear"}), kAll);
  EXPECT_EQ(parse({"v_proj,q_proj"}), (Names{"q_proj", "v_proj"})) << "in the model's order";
  EXPECT_EQ(parse({"down_proj", "q_proj,o_proj"}), (Names{"q_proj", "o_proj", "down_proj"}));
  EXPECT_EQ(base::refusal_of([&] { parse({"q_proj,linear_qkv"}); }),
            "--target-modules: \"linear_qkv\" is no module of this model; give all-linear, or some of "
            "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj with commas between them");
  EXPECT_NE(base::refusal_of([&] { parse({"q_proj", "q_proj"}); }).find("is named twice"), std::string::npos);
  for (const std::string bad : {"", "q_proj,", "all-linear,q_proj", "lm_head", "embed_tokens"})
    EXPECT_NE(base::refusal_of([&] { parse({bad}); }).find("is no module of this model"), std::string::npos) << bad;
}

TEST(Lora, EmbeddingHeadAndNormsCanBeTrainedWhole) {
  ModelConfig config = small_config(2);
  config.tied_embeddings = false;
  const Names of_qwen3 = {"embed_tokens", "input_layernorm", "q_norm", "k_norm", "post_attention_layernorm",
                          "norm",         "lm_head"};
  EXPECT_EQ(savable_modules(config), of_qwen3);
  const auto parse = [&](const Names& names) { return parse_saved_modules(names, config, "--modules-to-save"); };
  EXPECT_EQ(parse({"lm_head,embed_tokens"}), (Names{"embed_tokens", "lm_head"})) << "in the model's order";
  EXPECT_EQ(parse({}), Names());
  EXPECT_EQ(
      base::refusal_of([&] { parse({"q_proj"}); }),
      "--modules-to-save: \"q_proj\" is no module of this model; give some of "
      "embed_tokens,input_layernorm,q_norm,k_norm,post_attention_layernorm,norm,lm_head with commas between them");
  EXPECT_NE(base::refusal_of([&] { parse({"norm", "lm_head,norm"}); }).find("is named twice"), std::string::npos);
  config.tied_embeddings = true;
  EXPECT_EQ(base::refusal_of([&] { parse({"embed_tokens,lm_head"}); }),
            "--modules-to-save: lm_head is this model's embed_tokens (tie_word_embeddings); name embed_tokens alone, "
            "which trains both");
  // A router is trained with all weights or not at all.
  for (const std::string& architecture : kUnfusedArchitectures) {
    const Names modules = savable_modules(small_config(2, architecture));
    EXPECT_TRUE(std::ranges::find(modules, "gate") == modules.end()) << architecture;
    EXPECT_EQ(modules.front(), "embed_tokens") << architecture;
  }
}

TEST(Lora, AWholeModuleHasTheBasesPlaceAndPeftsName) {
  ModelConfig config = with_lora(small_config(2), {"q_proj"});
  config.tied_embeddings = true;
  const size_t of_adapter = adapter_layout(config).tensors.size();
  config.lora->saved_modules = {"embed_tokens", "norm"};
  const weights::Layout layout = adapter_layout(config), base = build_layout(config);
  // "norm" is every norm, as in PEFT: four of each layer, and the last.
  ASSERT_EQ(layout.tensors.size(), of_adapter + 1 + 4 * 2 + 1);
  for (size_t i = of_adapter; i < layout.tensors.size(); ++i) {
    const weights::PackedTensor &own = layout.tensors[i], &of_base = base.find(own.name);
    EXPECT_EQ(own.shape, of_base.shape);
    EXPECT_EQ(own.decays, of_base.decays);
    EXPECT_EQ(own.slices.front().hf_name, "base_model.model." + of_base.slices.front().hf_name);
  }
  // PEFT reads and writes a tied embedding twice.
  EXPECT_EQ(layout.find("embed").slices.front().twin, "base_model.model.lm_head.weight");
  EXPECT_EQ(layout.ignored, Names{"base_model.model.lm_head.weight"});
  config.tied_embeddings = false;
  config.lora->saved_modules = {"lm_head"};
  EXPECT_EQ(adapter_layout(config).tensors.back().slices.front().hf_name, "base_model.model.lm_head.weight");
  EXPECT_TRUE(adapter_layout(config).ignored.empty());
}

class AdapterConfigTest : public testing::Test {
 protected:
  AdapterConfigTest() { json_ = base::read_json_file(golden::directory() + "/lora/adapter_config.json"); }
  AdapterFile read() {
    base::write_file_durably(folder_ / "adapter_config.json", json_.dump());
    return read_adapter_config(folder_ / "");
  }
  std::string refusal_with(const std::string& key, const base::Json& value) {
    const base::Json before = json_;
    json_[key] = value;
    std::string text = base::refusal_of([this] { read(); });
    json_ = before;
    EXPECT_NE(text.find("adapter_config.json: "), std::string::npos) << text;
    return text;
  }
  base::TemporaryDirectory folder_;
  base::Json json_;
};

TEST_F(AdapterConfigTest, IsPeftsAndOursReadBack) {
  const AdapterFile file = read();
  EXPECT_EQ(file.rank, 4);
  EXPECT_EQ(file.alpha, 6.0);
  EXPECT_EQ(file.base, "tests/golden/models/qwen3-tied");
  EXPECT_EQ(std::set<std::string>(file.target_modules.begin(), file.target_modules.end()),
            (std::set<std::string>{"o_proj", "up_proj", "down_proj", "q_proj", "v_proj"}));
  for (const double alpha : {16.0, 0.5}) {
    json_ = base::parse_json(adapter_config_text({.rank = 7, .alpha = alpha, .target_modules = kAll}, "models/x"), "x");
    const AdapterFile own = read();
    EXPECT_EQ(own.rank, 7);
    EXPECT_EQ(own.alpha, alpha);
    EXPECT_EQ(own.base, "models/x");
    EXPECT_EQ(own.target_modules, kAll);
  }
}

TEST_F(AdapterConfigTest, ModulesToSaveArePeftsAndOursReadBack) {
  EXPECT_TRUE(read().modules_to_save.empty());
  json_ = base::read_json_file(golden::directory() + "/lora_saved_tied/adapter_config.json");
  EXPECT_EQ(read().modules_to_save, (Names{"embed_tokens", "norm"}));
  EXPECT_TRUE(read().ensures_weight_tying);
  const LoraConfig lora = {.rank = 7, .alpha = 8.0, .target_modules = kAll, .saved_modules = {"embed_tokens"}};
  for (const bool is_tied : {false, true}) {
    json_ = base::parse_json(adapter_config_text(lora, "models/x", is_tied), "x");
    EXPECT_EQ(read().modules_to_save, Names{"embed_tokens"});
    EXPECT_EQ(read().ensures_weight_tying, is_tied);
  }
}

// PEFT's scaling of an adapter of rank 4 with lora_alpha 3 and use_rslora is 1.5, as without it with lora_alpha 6.
TEST_F(AdapterConfigTest, ARankStabilizedScaleIsOverTheRanksRoot) {
  json_["use_rslora"] = true;
  json_["lora_alpha"] = 3;
  const AdapterFile file = read();
  EXPECT_TRUE(file.use_rslora);
  const LoraConfig lora = {
      .rank = file.rank, .alpha = file.alpha, .target_modules = kAll, .is_rank_stabilized = file.use_rslora};
  EXPECT_EQ(lora.scale(), 1.5);
  EXPECT_EQ((LoraConfig{.rank = 4, .alpha = 6.0, .target_modules = {}}.scale()), 1.5);
  json_ = base::parse_json(adapter_config_text(lora, "models/x"), "x");
  EXPECT_TRUE(read().use_rslora);
}

TEST_F(AdapterConfigTest, DropoutIsPeftsAndOursReadBack) {
  EXPECT_EQ(read().dropout, 0.0);
  json_["lora_dropout"] = 0.05;
  EXPECT_EQ(read().dropout, 0.05);
  json_.erase("lora_dropout");
  EXPECT_EQ(read().dropout, 0.0);
  json_ = base::parse_json(
      adapter_config_text({.rank = 7, .alpha = 8.0, .target_modules = kAll, .dropout = 0.1}, "models/x"), "x");
  EXPECT_EQ(json_["lora_dropout"], 0.1);
  EXPECT_EQ(read().dropout, 0.1);
}

TEST_F(AdapterConfigTest, WhatIsNotComputedIsRefusedByItsKey) {
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, base::Json>>{{"use_dora", true},
                                                       {"rank_pattern", {{"q_proj", 8}}},
                                                       {"modules_to_save", "lm_head"},
                                                       {"modules_to_save", {1}},
                                                       {"ensure_weight_tying", "yes"},
                                                       {"layers_to_transform", {1}},
                                                       {"fan_in_fan_out", true},
                                                       {"a_key_of_the_future", 1},
                                                       {"bias", "all"},
                                                       {"peft_type", "IA3"},
                                                       {"r", 0},
                                                       {"r", "8"},
                                                       {"lora_alpha", -1},
                                                       {"lora_dropout", 1.0},
                                                       {"lora_dropout", "0.1"},
                                                       {"target_modules", ".*proj"},
                                                       {"target_modules", base::Json::array()},
                                                       {"base_model_name_or_path", nullptr}}) {
    EXPECT_NE(refusal_with(key, value).find(key), std::string::npos) << key << " = " << value;
  }
}

// With these PEFT changes the base when it begins an adapter, and with most of them again when it loads one.
TEST_F(AdapterConfigTest, AnInitThatChangesTheBaseIsRefusedWithPeftsRemedy) {
  const std::string config = folder_ / "/adapter_config.json";
  EXPECT_EQ(refusal_with("init_lora_weights", "pissa"),
            config +
                ": init_lora_weights is \"pissa\", for which PEFT may change the weights of the base; save the "
                "adapter with PEFT's save_pretrained(..., path_initial_model_for_weight_conversion=...), or set "
                "this key to true if base_model_name_or_path names the changed base");
  // PEFT writes such keys beside the init, but the init is what matters.
  json_["corda_config"] = {{"corda_method", "ipm"}};
  json_["loftq_config"] = {{"loftq_bits", 4}, {"loftq_iter", 1}};
  for (const base::Json& value : std::vector<base::Json>{"pissa", "pissa_niter_16", "PiSSA", "olora", "OLoRA", "corda",
                                                         "loftq", "lora_ga", "an_init_of_the_future", "", 1, 0.5}) {
    const std::string message = refusal_with("init_lora_weights", value);
    EXPECT_NE(message.find("init_lora_weights is " + value.dump() + ", "), std::string::npos) << message;
    const std::string remedy = value == "loftq" ? "save the changed base" : "path_initial_model_for_weight_conversion";
    EXPECT_NE(message.find(remedy), std::string::npos) << message;
  }
}

TEST_F(AdapterConfigTest, AnInitOfTheAdaptersMatricesAloneIsRead) {
  for (const base::Json& value :
       std::vector<base::Json>{true, false, nullptr, "gaussian", "Gaussian", "orthogonal", "eva", "mica"}) {
    json_["init_lora_weights"] = value;
    EXPECT_EQ(read().rank, 4) << value.dump();
  }
  json_.erase("init_lora_weights");
  EXPECT_EQ(read().rank, 4);
}

// A folder of tests/golden with an adapter of PEFT's, and that of the model that it is for.
struct PeftCase {
  std::string adapter, model;
  friend void PrintTo(const PeftCase& c, std::ostream* out) { *out << c.adapter; }
};

// A model over the golden base and PEFT's adapter, in float32.
class PeftTest : public testing::TestWithParam<std::tuple<std::string, PeftCase>> {
 protected:
  PeftTest()
      : ops_(device::make_backend(backend(), backend() == "aten" ? 1 : 2)),
        reference_(folder() + "/reference.safetensors") {
    const std::string model = golden::directory() + "/models/" + std::get<1>(GetParam()).model;
    config_ = read_model_config(model);
    const AdapterFile file = read_adapter_config(folder());
    config_.lora = {.rank = file.rank,
                    .alpha = file.alpha,
                    .target_modules = parse_target_modules(file.target_modules, config_, "adapter_config.json"),
                    .saved_modules = parse_saved_modules(file.modules_to_save, config_, "adapter_config.json")};
    base_.emplace(build_layout(config_), at::kFloat);
    weights::load_hf_checkpoint(model, *base_);
    adapter_.emplace(adapter_layout(config_), at::kFloat);
    weights::load_adapter(folder(), *adapter_);
    if (ops_ != nullptr) model_ = make_model(config_, base_->view().with(adapter_->view()), *ops_);
  }
  void SetUp() override {
    if (ops_ == nullptr) GTEST_SKIP() << device::why_missing(backend());
  }
  static const std::string& backend() { return std::get<0>(GetParam()); }
  static std::string folder() { return golden::directory() + "/" + std::get<1>(GetParam()).adapter; }
  Tensor golden(const std::string& name) const { return weights::read_tensor(reference_, name); }

  ModelConfig config_;
  std::unique_ptr<device::Ops> ops_;
  weights::SafetensorsFile reference_;
  std::optional<weights::WeightStore> base_, adapter_;
  std::unique_ptr<Model> model_;
};

std::vector<std::string> backends() {
  std::vector<std::string> result = device::cpu_isas();
  result.emplace_back("aten");
  for (const std::string& name : device::device_backends()) result.push_back(name);
  return result;
}
INSTANTIATE_TEST_SUITE_P(Backends, PeftTest,
                         testing::Combine(testing::ValuesIn(backends()),
                                          testing::Values(PeftCase{"lora", "qwen3-tied"},
                                                          PeftCase{"lora_experts", "qwen3-moe"},
                                                          PeftCase{"lora_saved", "qwen3-untied-sharded"},
                                                          PeftCase{"lora_saved_tied", "qwen3-tied"})));

double difference(const Tensor& a, const Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST_P(PeftTest, LogitsLossAndEveryGradientArePefts) {
  for (int i = 0; i < 2; ++i) {
    const std::string prefix = fmt::format("seq{}.", i);
    const Tensor ids = golden(prefix + "input_ids");
    const int64_t length = ids.size(0);
    std::map<std::string, Tensor> gradients;
    std::set<std::string> frozen;
    for (const weights::PackedTensor& packed : adapter_->layout().tensors)
      gradients[packed.name] = at::zeros(packed.shape, at::kFloat);
    FunctionSink sink([&](const std::string& name) -> GradientTarget {
      const auto found = gradients.find(name);
      if (found != gradients.end()) return {.memory = found->second, .use = device::GradientUse::kAdd};
      frozen.insert(name);
      return {};
    });
    model_->set_gradient_sink(&sink);
    Tensor targets = at::full({length}, -1, at::TensorOptions(at::kInt));
    targets.narrow(0, 0, length - 1).copy_(ids.narrow(0, 1, length - 1));
    SequenceAttention attention(*ops_, config_, length, at::kFloat);
    const Tensor embedded = model_->embed(ids).set_requires_grad(true);
    Tensor hidden = embedded;
    for (int64_t layer = 0; layer < config_.num_layers; ++layer)
      hidden = model_->block(layer, hidden, int32_range(0, length), attention);
    const Tensor normed = model_->final_norm(hidden, ids.size(0)), logits = model_->head(normed.detach());
    EXPECT_LT(difference(logits, golden(prefix + "logits")), 1e-4);
    const Tensor logp = at::empty({length}), lse = at::empty({length});
    ops_->logprob(logits, targets, 1.0, logp, Tensor(), lse);
    const auto num_targets = static_cast<double>(length - 1);
    EXPECT_NEAR(-logp.sum(at::kDouble).item<double>() / num_targets, golden(prefix + "loss").item<double>(), 1e-5);

    const Tensor dlogits = ops_->logprob_backward(logits, targets, 1.0, at::full({length}, -1.0 / num_targets),
                                                  Tensor(), Tensor(), lse, at::kFloat);
    const Tensor dnormed = model_->head_backward(dlogits, normed.detach());
    model_->embed_backward(torch::autograd::grad({normed}, {embedded}, {dnormed})[0], ids);
    for (const weights::PackedTensor& packed : adapter_->layout().tensors) {
      for (const weights::Slice& slice : packed.slices) {
        const Tensor got = gradients.at(packed.name).narrow(0, slice.row_begin, slice.shape[0]);
        EXPECT_LT(difference(got, golden(prefix + "grad." + slice.hf_name)), 2e-5) << slice.hf_name;
      }
    }
    // Every tensor of the base was asked for and left alone: embedding (also the head), norms and matrices, but those
    // that are trained whole.
    const auto num_whole = std::ranges::count_if(base_->layout().tensors,
                                                 [&](const auto& packed) { return gradients.contains(packed.name); });
    EXPECT_EQ(std::ssize(frozen), std::ssize(base_->layout().tensors) - num_whole);
    model_->set_gradient_sink(nullptr);
  }
}

// The results of blocks are equal up to the sign of a zero, so the logits are equal too.
TEST(Lora, ANewAdapterChangesNoValue) {
  for (const std::string& architecture : kUnfusedArchitectures) {
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
      ModelConfig config = small_config(2, architecture);
      config.dtype = dtype;
      const at::ScalarType scalar = dtype == Dtype::kFloat32 ? at::kFloat : at::kBFloat16;
      const auto ops = device::make_cpu_ops("auto", 1);
      weights::WeightStore base(build_layout(config), scalar);
      draw_weights(base, 0.2, 5);
      const ModelConfig adapted = with_lora(config, adaptable_modules(config), 3, 5.0);
      weights::WeightStore adapter(adapter_layout(adapted), scalar);
      weights::initialize_random(adapter, 0.2, 5);
      const Tensor ids = int32_range(3, 20);
      const auto logits = [&](const ModelConfig& of, const weights::WeightsView& view) {
        const auto model = make_model(of, view, *ops);
        SequenceAttention attention(*ops, of, ids.size(0), scalar);
        return model->head(forward_hidden(*model, ids, int32_range(0, ids.size(0)), attention));
      };
      const Tensor plain = logits(config, base.view());
      EXPECT_TRUE(plain.equal(logits(adapted, base.view().with(adapter.view())))) << architecture;
      draw_weights(adapter, 0.2, 5);  // B too
      EXPECT_FALSE(plain.equal(logits(adapted, base.view().with(adapter.view())))) << architecture;
    }
  }
}

TEST(Lora, ABeginsUniformAsKaimingHasItAndBZero) {
  const ModelConfig config = with_lora(small_config(), kAll, 16);
  weights::WeightStore adapter(adapter_layout(config), at::kFloat);
  weights::initialize_random(adapter, 0.2, 1);
  const Tensor a = adapter.tensor("layers.0.qkv.lora_a");
  const double bound = 1.0 / std::sqrt(48.0);
  EXPECT_LE(a.abs().max().item<double>(), bound);
  EXPECT_GT(a.abs().max().item<double>(), 0.98 * bound);
  EXPECT_NEAR(a.to(at::kDouble).square().mean().item<double>(), bound * bound / 3.0, 0.05 * bound * bound);
  EXPECT_EQ(adapter.tensor("layers.0.qkv.lora_b").abs().max().item<double>(), 0.0);
  EXPECT_NEAR(adapter.tensor("layers.1.down.lora_a").abs().max().item<double>(), 1.0 / std::sqrt(80.0), 2e-3);
}

}  // namespace
}  // namespace tandem::model
