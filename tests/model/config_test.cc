// config.json: both published spellings mean the same model, and whatever Tandem would compute differently is refused.
#include "model/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/files.h"
#include "base/json.h"
#include "model/registry.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"
#include "tests/golden/golden.h"
#include "tests/model/families.h"
#include "tests/model/small_models.h"

namespace tandem::model {
namespace {

using base::Json;

std::string models_folder() { return golden::directory() + "/models/"; }
std::string reference_folder() { return golden::directory() + "/reference/"; }

Json golden_config(const std::string& model) { return base::read_json_file(models_folder() + model + "/config.json"); }

ModelConfig parse(const Json& json) { return parse_model_config(json.dump(), "dir/config.json"); }

std::string refusal(const std::string& text) {
  std::string message = base::refusal_of([&] { parse_model_config(text, "dir/config.json"); });
  EXPECT_TRUE(message.starts_with("dir/config.json:")) << text << ": " << message;
  return message;
}

std::string refusal_with(const std::string& key, const Json& value, const std::string& model = "qwen3-tied") {
  Json json = golden_config(model);
  json[key] = value;
  return refusal(json.dump());
}

void expect_equal(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(a.architecture, b.architecture);
  EXPECT_EQ(a.hidden, b.hidden);
  EXPECT_EQ(a.num_layers, b.num_layers);
  EXPECT_EQ(a.num_heads, b.num_heads);
  EXPECT_EQ(a.num_kv_heads, b.num_kv_heads);
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.mlp, b.mlp);
  EXPECT_EQ(a.experts, b.experts);
  EXPECT_EQ(a.vocab, b.vocab);
  EXPECT_EQ(a.max_positions, b.max_positions);
  EXPECT_EQ(a.attention, b.attention);
  EXPECT_EQ(a.rms_norm_eps, b.rms_norm_eps);
  EXPECT_EQ(a.tied_embeddings, b.tied_embeddings);
  EXPECT_EQ(a.initializer_range, b.initializer_range);
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.eos_token_ids, b.eos_token_ids);
}

TEST(ModelConfig, ReadsTiedQwen3) {
  const ModelConfig config = read_model_config(models_folder() + "qwen3-tied");
  EXPECT_EQ(config.architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(config.hidden, 64);
  EXPECT_EQ(config.num_layers, 3);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.mlp, 160);
  EXPECT_EQ(config.vocab, 512);
  EXPECT_EQ(config.max_positions, 1024);
  EXPECT_EQ(config.attention_of(0).rope_theta, 1e6);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.initializer_range, 0.2);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_EQ(config.dtype, Dtype::kFloat32);
}

TEST(ModelConfig, ReadsUntiedQwen3AsTransformers5WritesIt) {
  const ModelConfig config = read_model_config(models_folder() + "qwen3-untied-sharded");
  EXPECT_EQ(config.hidden, 96);
  EXPECT_EQ(config.num_heads, 8);
  EXPECT_EQ(config.attention_of(0).rope_theta, 1e6);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_EQ(config.dtype, Dtype::kBFloat16);
  EXPECT_EQ(config.pad_token_id, 736);
}

TEST(ModelConfig, ReadsSparseQwen3) {
  const ModelConfig config = read_model_config(models_folder() + "qwen3-moe");
  EXPECT_EQ(config.architecture, "Qwen3MoeForCausalLM");
  EXPECT_EQ(config.hidden, 64);
  EXPECT_EQ(config.experts, (ExpertsConfig{.count = 8, .chosen = 2, .width = 48, .normalises = true}));
  Json json = golden_config("qwen3-moe");
  json.erase("norm_topk_prob");
  EXPECT_FALSE(parse(json).experts->normalises) << "missing means false";
}

TEST(ModelConfig, ExpertsOutOfRangeAreRefused) {
  const std::vector<std::pair<std::string, Json>> settings = {
      {"num_experts", 0},           {"num_experts", 4097}, {"num_experts_per_tok", 0}, {"num_experts_per_tok", 9},
      {"moe_intermediate_size", 0}, {"norm_topk_prob", 1}, {"mlp_only_layers", 0},     {"decoder_sparse_step", 0}};
  for (const auto& [key, value] : settings) {
    SCOPED_TRACE(key + " = " + value.dump());
    const std::string message = refusal_with(key, value, "qwen3-moe");
    EXPECT_NE(message.find(key), std::string::npos) << message;
  }
  Json json = golden_config("qwen3-moe");
  json["num_experts"] = json["num_hidden_layers"] = 4096;
  EXPECT_NE(refusal(json.dump()).find("num_experts is 4096 in each of 4096 layers"), std::string::npos);
  json["num_experts"] = 32;
  json["num_local_experts"] = 8;
  EXPECT_NE(refusal(json.dump()).find("num_experts is 32 but num_local_experts is 8"), std::string::npos);
}

TEST(ModelConfig, ReadsQwen2) {
  const ModelConfig config = read_model_config(models_folder() + "qwen2-tied");
  EXPECT_EQ(config.architecture, "Qwen2ForCausalLM");
  EXPECT_EQ(config.hidden, 96);
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.num_heads, 6);
  EXPECT_EQ(config.head_dim, 16) << "hidden / heads: the published folders do not say it";
  EXPECT_EQ(config.attention_of(0).rope_theta, 1e6);
  EXPECT_TRUE(config.attention_of(0).rope_factors.empty());
  EXPECT_TRUE(config.tied_embeddings);
}

TEST(ModelConfig, ReadsLlama3) {
  const ModelConfig config = read_model_config(models_folder() + "llama3-untied-sharded");
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.num_layers, 3);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.attention_of(0).rope_theta, 5e5);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_EQ(config.dtype, Dtype::kBFloat16);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int32_t>{736, 740, 738}));
  EXPECT_EQ(config.pad_token_id, -1);
}

// The expected values are what transformers' _compute_llama3_parameters makes of each frequency, over the default one,
// for the golden model and for Llama 3.2 1B.
TEST(ModelConfig, Llama3ScalesFrequenciesAsTransformersDoes) {
  Json json = golden_config("llama3-untied-sharded");
  std::vector<float> want = {1.0F, 0.34618443F, 0.03125F, 0.03125F, 0.03125F, 0.03125F, 0.03125F, 0.03125F};
  const auto expect = [&] {
    const std::vector<float> got = parse(json).attention_of(0).rope_factors;
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 4e-7 * want[i]) << i;
  };
  expect();
  json["head_dim"] = 64;
  json["rope_scaling"]["original_max_position_embeddings"] = 8192;
  want.assign(32, 0.03125F);
  std::fill_n(want.begin(), 15, 1.0F);
  want[15] = 0.60557276F;
  want[16] = 0.3037425F;
  want[17] = 0.10344759F;
  expect();
  json["rope_scaling"] = nullptr;
  EXPECT_TRUE(parse(json).attention_of(0).rope_factors.empty()) << "Llama 3 without scaling";
}

// The expected values are what transformers' functions of those names make of each frequency, over the default one, and
// their attention factor, for a head of 32 and a theta of 1e6.
TEST(ModelConfig, LinearAndYarnScaleAsTransformersDoes) {
  Json json = golden_config("qwen3-tied");
  const auto expect = [&](const Json& scaling, const std::vector<float>& want, double attention_factor) {
    SCOPED_TRACE(scaling.dump());
    json["rope_scaling"] = scaling;
    const LayerAttention got = parse(json).attention_of(0);
    ASSERT_EQ(got.rope_factors.size(), 16U);
    for (size_t i = 0; i < 16; ++i)
      EXPECT_NEAR(got.rope_factors[i], i < want.size() ? want[i] : want.back(), 2e-7F) << i;
    EXPECT_NEAR(got.query_scale, attention_factor * attention_factor, 1e-12);
  };
  expect({{"type", "linear"}, {"factor", 4.0}}, {0.25F}, 1.0);
  expect({{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}}, {1.0F, 0.75F, 0.5F, 0.25F},
         1.138629436111989);
  expect({{"rope_type", "yarn"},
          {"factor", 8.0},
          {"original_max_position_embeddings", 8192},
          {"beta_fast", 16},
          {"beta_slow", 2},
          {"mscale", 0.7},
          {"mscale_all_dim", 1.4},
          {"truncate", false}},
         {1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 0.67163156F, 0.30829571F, 0.125F}, 0.8872601282602985);
  expect(
      {{"rope_type", "yarn"}, {"factor", 8.0}, {"original_max_position_embeddings", 8192}, {"attention_factor", 1.25}},
      {1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 0.825F, 0.65F, 0.475F, 0.3F, 0.125F}, 1.25);
}

TEST(ModelConfig, YarnOutOfRangeIsRefused) {
  const Json scaling = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
  const std::vector<std::pair<std::string, Json>> settings = {
      {"factor", 0.5},           {"original_max_position_embeddings", 0},
      {"beta_fast", 0.5},        {"attention_factor", 0},
      {"attention_factor", "1"}, {"mscale", -1},
      {"truncate", 1},           {"low_freq_factor", 1.0},
      {"type", "linear"}};
  for (const auto& [key, value] : settings) {
    SCOPED_TRACE(key + " = " + value.dump());
    Json changed = scaling;
    changed[key] = value;
    const std::string message = refusal_with("rope_scaling", changed);
    EXPECT_NE(message.find("rope_scaling: "), std::string::npos) << message;
    EXPECT_NE(message.find(key), std::string::npos) << message;
  }
}

TEST(ModelConfig, WindowsAreThoseOfTheLayersThatHaveThem) {
  const auto windows_of = [](const ModelConfig& config) {
    std::vector<int64_t> windows;
    for (int64_t layer = 0; layer < config.num_layers; ++layer) windows.push_back(config.attention_of(layer).window);
    return windows;
  };
  using Windows = std::vector<int64_t>;
  Json mistral = golden_config("mistral-window");
  EXPECT_EQ(windows_of(parse(mistral)), (Windows{20, 20}));
  mistral["sliding_window"] = 256;
  EXPECT_EQ(windows_of(parse(mistral)), (Windows{0, 0})) << "it holds every sequence of the model";
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(windows_of(parse(mistral)), (Windows{0, 0}));
  mistral.erase("sliding_window");
  EXPECT_NE(refusal(mistral.dump()).find("sliding_window is missing"), std::string::npos)
      << "transformers would take 4096";

  EXPECT_EQ(windows_of(parse(golden_config("ministral"))), (Windows{20, 0}));
  Json olmo = golden_config("olmo3");
  EXPECT_EQ(windows_of(parse(olmo)), (Windows{20, 0, 20}));
  olmo.erase("layer_types");
  olmo["num_hidden_layers"] = 5;
  EXPECT_EQ(windows_of(parse(olmo)), (Windows{20, 20, 20, 0, 20})) << "every fourth layer has none";
  Json gemma = golden_config("gemma3");
  gemma.erase("layer_types");
  EXPECT_EQ(windows_of(parse(gemma)), (Windows{20, 20, 20})) << "every sixth layer has none";
  gemma["sliding_window_pattern"] = 2;
  EXPECT_EQ(windows_of(parse(gemma)), (Windows{20, 0, 20}));
  Json qwen = golden_config("qwen3-tied");
  qwen["sliding_window"] = 16;  // counts where use_sliding_window says true, which is refused
  EXPECT_EQ(windows_of(parse(qwen)), (Windows{0, 0, 0}));
}

// OLMo 3 was trained with YaRN in the layers without a window alone, Gemma 3 has a base of its own in the others.
TEST(ModelConfig, LayersWithAWindowHaveTheirOwnRotation) {
  Json olmo = golden_config("olmo3");
  olmo["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
  const ModelConfig scaled = parse(olmo);
  EXPECT_TRUE(scaled.attention_of(0).rope_factors.empty());
  EXPECT_EQ(scaled.attention_of(0).query_scale, 1.0);
  EXPECT_FALSE(scaled.attention_of(1).rope_factors.empty());
  EXPECT_GT(scaled.attention_of(1).query_scale, 1.1);
  // transformers 5.17 writes an object for each kind of layer, each with a base.
  Json typed = golden_config("olmo3");
  typed.erase("rope_theta");
  typed.erase("rope_scaling");
  typed["rope_parameters"] = {
      {"full_attention", olmo["rope_scaling"]},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 5e5}}},
  };
  typed["rope_parameters"]["full_attention"]["rope_theta"] = 1e4;
  const ModelConfig by_type = parse(typed);
  EXPECT_EQ(by_type.attention_of(0).rope_theta, 5e5);
  EXPECT_TRUE(by_type.attention_of(0).rope_factors.empty());
  EXPECT_EQ(by_type.attention_of(1).rope_theta, 1e4);
  EXPECT_EQ(by_type.attention_of(1).rope_factors, scaled.attention_of(1).rope_factors);
  typed["rope_parameters"]["sliding_attention"]["rope_type"] = "yarn";
  EXPECT_NE(refusal(typed.dump()).find("rope_parameters: sliding_attention: rope_type"), std::string::npos);
  const ModelConfig gemma = parse(golden_config("gemma3"));
  EXPECT_EQ(gemma.attention_of(0).rope_theta, 1e4);
  EXPECT_TRUE(gemma.attention_of(0).rope_factors.empty());
  EXPECT_EQ(gemma.attention_of(2).rope_theta, 1e5);
  EXPECT_EQ(gemma.attention_of(2).rope_factors, std::vector<float>(8, 0.5F));
  EXPECT_NEAR(gemma.attention_of(0).query_scale, std::sqrt(16.0 / 24.0), 1e-15);
}

TEST(ModelConfig, ListedLayersAreNotRotated) {
  const auto rotates = [](const LayerAttention& layer) {
    return std::ranges::any_of(layer.rope_factors, [](float factor) { return factor != 0.0F; });
  };
  Json json = golden_config("smollm3-linear");
  const ModelConfig listed = parse(json);
  EXPECT_TRUE(rotates(listed.attention_of(0)) && !rotates(listed.attention_of(1)) && rotates(listed.attention_of(2)));
  json.erase("no_rope_layers");
  const ModelConfig none = parse(json);
  EXPECT_TRUE(rotates(none.attention_of(0)) && rotates(none.attention_of(2))) << "the first would be the fourth layer";
  json["no_rope_layer_interval"] = 2;
  EXPECT_FALSE(rotates(parse(json).attention_of(1)));
}

TEST(ModelConfig, HeadDimIsTheQuotientWhereAFamilySaysSo) {
  for (const std::string model : {"qwen2-tied", "llama3-untied-sharded"}) {
    Json json = golden_config(model);
    json.erase("head_dim");
    EXPECT_EQ(parse(json).head_dim, 16);
    json["head_dim"] = 32;
    EXPECT_EQ(parse(json).head_dim, 32) << "where it is there it counts";
    json.erase("head_dim");
    json["hidden_size"] = 100;  // of 6 and of 4 heads: no whole number, an odd one
    EXPECT_NE(refusal(json.dump()).find("head_dim"), std::string::npos);
  }
}

TEST(ModelConfig, BothSpellingsMeanTheSameModel) {
  for (const std::string& model : kGoldenModels) {
    const std::string one = models_folder() + model + "/config.json";
    const std::string other = reference_folder() + model + "/config_other_style.json";
    expect_equal(parse_model_config(base::read_file(one), one), parse_model_config(base::read_file(other), other));
  }
}

TEST(ModelConfig, EosIdsComeFromBothFilesAndPadFromEither) {
  const ModelConfig config = read_model_config(models_folder() + "qwen3-tied");
  EXPECT_EQ(config.eos_token_ids, (std::vector<int32_t>{473, 471}));
  EXPECT_EQ(config.pad_token_id, 471);  // generation_config.json alone has it
}

TEST(ModelConfig, CountsParametersAsTheIndexDoes) {
  EXPECT_EQ(read_model_config(models_folder() + "qwen3-untied-sharded").num_parameters(), 633952);
}

TEST(ModelConfig, UnknownArchitectureNamesTheSupportedOnes) {
  const std::string message = refusal_with("architectures", {"FalconForCausalLM"});
  EXPECT_NE(message.find("FalconForCausalLM"), std::string::npos) << message;
  EXPECT_NE(message.find(supported_architectures()), std::string::npos) << message;
  std::string names;
  for (const TestFamily& family : kTestFamilies) names += (names.empty() ? "" : ", ") + family.architecture;
  EXPECT_EQ(supported_architectures(), names);
}

TEST(ModelConfig, SparseModelsOfAFamilyAreRefusedWithTheReason) {
  const std::string message = refusal_with("architectures", {"Qwen2MoeForCausalLM"});
  EXPECT_NE(message.find("not supported yet"), std::string::npos) << message;
  EXPECT_NE(message.find("take a dense checkpoint"), std::string::npos) << message;
}

TEST(ModelConfig, EveryRequiredKeyIsAskedForByName) {
  for (const TestFamily& family : kTestFamilies) {
    SCOPED_TRACE(family.architecture);
    const std::string& model = family.golden_models.front();
    std::vector<std::string> keys = {
        "architectures",     "hidden_size", "num_hidden_layers",       "num_attention_heads", "num_key_value_heads",
        "intermediate_size", "vocab_size",  "max_position_embeddings", "rms_norm_eps",        "rope_theta"};
    keys.insert(keys.end(), family.required_keys.begin(), family.required_keys.end());
    for (const std::string& key : keys) {
      Json json = golden_config(model);
      json.erase(key);
      const std::string message = refusal(json.dump());
      EXPECT_NE(message.find(key + " is missing"), std::string::npos) << message;
      EXPECT_NE(refusal_with(key, nullptr, model).find(key + " is missing"), std::string::npos);
    }
    Json json = golden_config(model);
    json.erase("torch_dtype");
    EXPECT_NE(refusal(json.dump()).find("dtype is missing"), std::string::npos);
  }
  for (const std::string key : {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    Json json = golden_config("llama3-untied-sharded");
    json["rope_scaling"].erase(key);
    EXPECT_NE(refusal(json.dump()).find("rope_scaling: " + key + " is missing"), std::string::npos);
  }
}

TEST(ModelConfig, WhatItWouldComputeDifferentlyIsRefused) {
  using Settings = std::vector<std::pair<std::string, Json>>;
  const Settings of_all = {
      {"attention_dropout", 0.1},
      {"quantization_config", {{"quant_method", "fp8"}}},
      {"quantization_config", {{"quant_method", "bitsandbytes"}}},
      {"quantization_config",
       {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}, {"bnb_4bit_quant_type", "fp4"}}},
      {"quantization_config",
       {{"quant_method", "bitsandbytes"},
        {"load_in_4bit", true},
        {"bnb_4bit_quant_type", "nf4"},
        {"bnb_4bit_quant_storage", "uint8"},
        {"bnb_4bit_use_double_quant", false}}},
      {"quantization_config",
       {{"quant_method", "bitsandbytes"},
        {"load_in_4bit", true},
        {"bnb_4bit_quant_type", "nf4"},
        {"bnb_4bit_quant_storage", "bfloat16"}}},
      {"quantization_config", "nf4"},
      {"layer_types", {"full_attention", "chunked_attention", "full_attention"}},
      {"layer_types", {"full_attention"}},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}},
      {"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}},
      {"rope_scaling", {{"rope_type", ""}}},
      {"rope_scaling", {{"rope_type", "default"}, {"factor", 2.0}}},
      {"rope_scaling", "linear"},
      {"rope_parameters", {{"rope_type", "llama3"}, {"rope_theta", 1e6}}},
      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 3e4}}},
      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.5}}},
      {"rope_parameters", {{"full_attention", {{"rope_theta", 1e6}}}}},
      {"torch_dtype", "float8_e4m3fn"},
      {"dtype", "float16"},  // torch_dtype says another
  };
  for (const TestFamily& family : kTestFamilies) {
    Settings settings = of_all;
    if (find_family(family.architecture)->activation == Activation::kSilu) settings.emplace_back("hidden_act", "gelu");
    for (const auto& [key, value] : family.refused) settings.emplace_back(key, base::parse_json(value, key));
    for (const auto& [key, value] : settings) {
      SCOPED_TRACE(family.architecture + ", " + key + " = " + value.dump());
      EXPECT_NE(refusal_with(key, value, family.golden_models.front()).find(key), std::string::npos);
    }
  }
}

TEST(ModelConfig, Llama3ScalingThatItWouldComputeDifferentlyIsRefused) {
  const std::string model = "llama3-untied-sharded";
  const Json scaling = golden_config(model)["rope_scaling"];
  EXPECT_NE(refusal_with("rope_parameters", scaling, model).find("rope_scaling too"), std::string::npos);
  const std::vector<std::pair<std::string, Json>> settings = {{"beta_fast", 32},
                                                              {"factor", 0.5},
                                                              {"factor", "8"},
                                                              {"low_freq_factor", 0},
                                                              {"low_freq_factor", 4.0},
                                                              {"high_freq_factor", 0.5},
                                                              {"original_max_position_embeddings", 0}};
  for (const auto& [key, value] : settings) {
    SCOPED_TRACE(key + " = " + value.dump());
    Json changed = scaling;
    changed[key] = value;
    EXPECT_NE(refusal_with("rope_scaling", changed, model).find("rope_scaling: "), std::string::npos);
  }
}

TEST(ModelConfig, ValuesOutOfRangeOrOfAnotherTypeAreRefused) {
  const std::vector<std::pair<std::string, Json>> settings = {
      {"hidden_size", 0},
      {"hidden_size", -64},
      {"hidden_size", 64.0},
      {"hidden_size", "64"},
      {"hidden_size", true},
      {"hidden_size", uint64_t{1} << 63},
      {"hidden_size", 1 << 30},
      {"num_hidden_layers", 0},
      {"num_hidden_layers", 1000000},
      {"num_attention_heads", 3},  // 2 kv heads
      {"num_key_value_heads", 3},
      {"num_key_value_heads", 8},
      {"head_dim", 31},
      {"vocab_size", 0},
      {"vocab_size", int64_t{1} << 40},
      {"max_position_embeddings", int64_t{1} << 31},
      {"rms_norm_eps", 0},
      {"rms_norm_eps", -1e-6},
      {"rms_norm_eps", "1e-6"},
      {"rope_theta", 0},
      {"rope_theta", -1.0},
      {"rope_theta", "1e6"},
      {"initializer_range", -0.02},
      {"tie_word_embeddings", 1},
      {"tie_word_embeddings", "true"},
      {"torch_dtype", 32},
      {"eos_token_id", 512},
      {"eos_token_id", -2},
      {"eos_token_id", {473, "471"}},
      {"eos_token_id", 473.0},
      {"pad_token_id", 512},
      {"pad_token_id", {471}},
      {"architectures", Json::array()},
      {"architectures", {"Qwen3ForCausalLM", "Qwen3ForCausalLM"}},
      {"architectures", "Qwen3ForCausalLM"},
      {"hidden_act", 1},
  };
  for (const auto& [key, value] : settings) {
    SCOPED_TRACE(key + " = " + value.dump());
    const std::string message = refusal_with(key, value);
    EXPECT_NE(message.find(key.substr(0, 4)), std::string::npos) << message;
  }
}

// The bytes of such a model once left 64 bits: its plan was a negative number, and a bug of ours.
TEST(ModelConfig, AllBoundsAtOnceAreNoModel) {
  Json json = golden_config("qwen3-tied");
  json["hidden_size"] = 1 << 20;
  json["num_hidden_layers"] = 1 << 12;
  json["num_attention_heads"] = json["num_key_value_heads"] = 1 << 14;
  json["head_dim"] = 1 << 12;
  json["intermediate_size"] = 1 << 22;
  json["vocab_size"] = 1 << 24;
  json["max_position_embeddings"] = 2147483647;
  const std::string what = refusal(json.dump());
  for (const char* key : {"num_hidden_layers 4096", "hidden_size 1048576", "intermediate_size", "vocab_size",
                          "num_attention_heads", "head_dim", "parameters, more than any machine holds"}) {
    EXPECT_NE(what.find(key), std::string::npos) << what;
  }
}

TEST(ModelConfig, TextThatIsNoObjectIsRefusedWithItsPlace) {
  for (const std::string text : {"", "[]", "null", "{", "{\"hidden_size\": 64, \"hidden_size\": 64}", "\xff\xfe"}) {
    refusal(text);
  }
}

TEST(ModelConfig, Float16IsHeldAsFloat32) {
  Json json = golden_config("qwen3-tied");
  json["torch_dtype"] = "float16";
  EXPECT_EQ(parse(json).dtype, Dtype::kFloat32);
}

TEST(ModelConfig, NullCountsAsAbsent) {
  Json json = golden_config("qwen3-tied");
  json["eos_token_id"] = nullptr;
  json["tie_word_embeddings"] = nullptr;
  json["initializer_range"] = nullptr;
  const ModelConfig config = parse(json);
  EXPECT_TRUE(config.eos_token_ids.empty());
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_EQ(config.initializer_range, 0.02);
  EXPECT_EQ(config.pad_token_id, -1);
}

TEST(ModelConfig, MissingDirectoryOrFileIsSaidByName) {
  const base::TemporaryDirectory directory;
  const auto message_of = [](const std::string& path) -> std::string {
    return base::thrown_by([&] { read_model_config(path); }, "accepted");
  };
  EXPECT_NE(message_of(directory / "absent").find(directory / "absent: no such directory"), std::string::npos);
  EXPECT_NE(message_of(directory.path()).find("config.json: no such file; a Hugging Face model directory has one"),
            std::string::npos);
  const std::string run = directory / "run";
  std::filesystem::create_directories(run + "/hf/latest");
  EXPECT_EQ(message_of(run),
            run + "/config.json: no such file; this is a run, whose newest weights are in " + run + "/hf/latest");

  std::filesystem::copy(models_folder() + "qwen3-tied/config.json", directory / "config.json");
  EXPECT_EQ(read_model_config(directory.path()).eos_token_ids, (std::vector<int32_t>{473}));
  std::ofstream(directory / "generation_config.json") << "{\"eos_token_id\": [99999]}";
  const std::string message = message_of(directory.path());
  EXPECT_NE(message.find("generation_config.json: eos_token_id"), std::string::npos) << message;
}

TEST(Layout, PacksEveryParameterOnceWithoutGaps) {
  for (const std::string& model : kGoldenModels) {
    const ModelConfig config = read_model_config(models_folder() + model);
    const weights::Layout layout = build_layout(config);
    for (const weights::PackedTensor& packed : layout.tensors) {
      int64_t rows = 0;
      for (const weights::Slice& slice : packed.slices) {
        EXPECT_EQ(slice.row_begin, rows) << slice.hf_name;
        EXPECT_EQ(slice.shape.size(), packed.shape.size());
        rows += slice.shape[0];
      }
      EXPECT_EQ(rows, packed.shape[0]) << packed.name;
    }
    const int64_t q_rows = config.num_heads * config.head_dim, kv_rows = config.num_kv_heads * config.head_dim;
    EXPECT_EQ(layout.find("layers.0.qkv").shape, (std::vector<int64_t>{q_rows + 2 * kv_rows, config.hidden}));
    if (config.experts) {
      const int64_t count = config.experts->count, width = config.experts->width;
      EXPECT_EQ(layout.find("layers.0.router").shape, (std::vector<int64_t>{count, config.hidden}));
      EXPECT_EQ(layout.find("layers.0.experts_gate_up").shape,
                (std::vector<int64_t>{count * 2 * width, config.hidden}));
      EXPECT_EQ(layout.find("layers.0.experts_down").shape, (std::vector<int64_t>{count * config.hidden, width}));
    } else {
      EXPECT_EQ(layout.find("layers.0.gate_up").shape, (std::vector<int64_t>{2 * config.mlp, config.hidden}));
    }
    EXPECT_EQ(layout.find("layers.0.o").shape, (std::vector<int64_t>{config.hidden, q_rows}));
    EXPECT_THROW(layout.find("layers.99.qkv"), BugError);
    EXPECT_EQ(config.tied_embeddings, !layout.ignored.empty());
  }
}

TEST(Layout, Qwen3_30B_A3BHasThePublishedTensors) {
  const weights::Layout layout = build_layout(qwen3_30b_a3b());
  int64_t num_tensors = 0;
  for (const weights::PackedTensor& packed : layout.tensors) num_tensors += std::ssize(packed.slices);
  EXPECT_EQ(num_tensors, 18867);
  EXPECT_EQ(layout.tensors.size(), 435U);
  EXPECT_EQ(layout.num_elements(), 30'532'122'624);
}

TEST(Layout, SaysHowTensorsBeginAndWhichDecay) {
  using weights::Init;
  for (const std::string& model : kGoldenModels) {
    for (const weights::PackedTensor& packed : build_layout(read_model_config(models_folder() + model)).tensors) {
      SCOPED_TRACE(model + ", " + packed.name);
      const bool is_norm = packed.name.ends_with("norm"), is_bias = packed.name.ends_with("bias");
      const bool has_offset = model == "gemma3";
      EXPECT_EQ(packed.init, is_norm && !has_offset ? Init::kOnes : is_norm || is_bias ? Init::kZeros : Init::kNormal);
      EXPECT_EQ(packed.decays, !is_norm && !is_bias);
    }
  }
  EXPECT_EQ(build_layout(read_model_config(models_folder() + "qwen2-tied")).find("layers.1.qkv_bias").shape,
            (std::vector<int64_t>{(6 + 2 * 2) * 16}));
}

}  // namespace
}  // namespace tandem::model
