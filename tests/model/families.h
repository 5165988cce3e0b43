// The families that tests go through, a row each: a new one has its own here, and golden data. No torch.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "model/config.h"

namespace tandem::model {

struct TestFamily {
  std::string architecture;
  // Folders of tests/golden/models whose weights are there, and of tests/golden/reference. The config.json of the first
  // is in the form of transformers 4.
  std::vector<std::string> golden_models;
  // Keys of config.json that not every family requires.
  std::vector<std::string> required_keys = {};
  // Keys of config.json with values, as JSON, that not every family refuses.
  std::vector<std::pair<std::string, std::string>> refused = {};
  bool scales_rope = false;
  bool is_sparse = false;
};

inline const std::pair<std::string, std::string> kLlama3Scaling = {
    "rope_scaling", R"({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                        "original_max_position_embeddings": 64})"};

// The rows are in the order of model/registry.cc.
inline const std::vector<TestFamily> kTestFamilies = {
    {.architecture = "Qwen3ForCausalLM",
     .golden_models = {"qwen3-tied", "qwen3-untied-sharded"},
     .required_keys = {"head_dim"},
     .refused = {{"attention_bias", "true"}, {"use_sliding_window", "true"}, kLlama3Scaling}},
    {.architecture = "Qwen3MoeForCausalLM",
     .golden_models = {"qwen3-moe", "qwen3-moe-unnormed"},
     .required_keys = {"head_dim", "num_experts", "num_experts_per_tok", "moe_intermediate_size"},
     .refused = {{"attention_bias", "true"},
                 {"use_sliding_window", "true"},
                 {"decoder_sparse_step", "2"},
                 {"mlp_only_layers", "[0]"},
                 {"num_local_experts", "9"},
                 kLlama3Scaling},
     .is_sparse = true},
    {.architecture = "Qwen2ForCausalLM",
     .golden_models = {"qwen2-tied"},
     .refused = {{"attention_bias", "false"}, {"use_sliding_window", "true"}, {"use_mrope", "true"}, kLlama3Scaling}},
    {.architecture = "LlamaForCausalLM",
     .golden_models = {"llama3-untied-sharded"},
     .refused = {{"attention_bias", "true"}, {"mlp_bias", "true"}},
     .scales_rope = true},
};

inline const std::vector<std::string> kArchitectures = [] {
  std::vector<std::string> architectures;
  for (const TestFamily& family : kTestFamilies) architectures.push_back(family.architecture);
  return architectures;
}();

inline const std::vector<std::string> kGoldenModels = [] {
  std::vector<std::string> models;
  for (const TestFamily& family : kTestFamilies)
    models.insert(models.end(), family.golden_models.begin(), family.golden_models.end());
  return models;
}();

// Returns the same widths in another family, with what only that one has.
inline ModelConfig in_family(ModelConfig config, const std::string& architecture) {
  config.architecture = architecture;
  config.rope_factors.clear();
  config.experts.reset();
  for (const TestFamily& family : kTestFamilies) {
    if (family.architecture != architecture) continue;
    if (family.is_sparse) config.experts = {.count = 6, .chosen = 2, .width = config.mlp, .normalises = true};
    if (!family.scales_rope) continue;
    // The factors fall from 1 to 1/8, as in the llama3 form.
    for (int64_t i = 0; i < config.head_dim / 2; ++i)
      config.rope_factors.push_back(1.0F - 0.875F * static_cast<float>(i) / static_cast<float>(config.head_dim / 2));
  }
  return config;
}

// Returns "qwen3_tied" for "qwen3-tied": the names of tests have no hyphens.
inline std::string as_test_name(std::string text) {
  for (char& c : text) c = c == '-' ? '_' : c;
  return text;
}

}  // namespace tandem::model
