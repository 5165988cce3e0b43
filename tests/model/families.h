// The families that tests go through, a row each: a new one has its own here, and golden data. No torch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "model/config.h"
#include "model/registry.h"

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
  bool scales_queries = false;
  bool rotates_a_part = false;
  bool has_attention_bias = false;
  bool has_windows = false;
  // Its blocks compute nothing that those of another row do not.
  bool is_like_another = false;
};

// The rows are in the order of model/registry.cc.
inline const std::vector<TestFamily> kTestFamilies = {
    {.architecture = "Qwen3ForCausalLM",
     .golden_models = {"qwen3-tied", "qwen3-untied-sharded"},
     .required_keys = {"head_dim"},
     .refused = {{"attention_bias", "true"}, {"use_sliding_window", "true"}}},
    {.architecture = "Qwen3MoeForCausalLM",
     .golden_models = {"qwen3-moe", "qwen3-moe-unnormed"},
     .required_keys = {"head_dim", "num_experts", "num_experts_per_tok", "moe_intermediate_size"},
     .refused = {{"attention_bias", "true"},
                 {"use_sliding_window", "true"},
                 {"decoder_sparse_step", "2"},
                 {"mlp_only_layers", "[0]"},
                 {"num_local_experts", "9"}},
     .is_sparse = true},
    {.architecture = "Qwen2ForCausalLM",
     .golden_models = {"qwen2-tied"},
     .refused = {{"attention_bias", "false"}, {"use_sliding_window", "true"}, {"use_mrope", "true"}}},
    {.architecture = "LlamaForCausalLM",
     .golden_models = {"llama3-untied-sharded"},
     .refused = {{"attention_bias", "true"}, {"mlp_bias", "true"}},
     .scales_rope = true},
    {.architecture = "MistralForCausalLM",
     .golden_models = {"mistral-yarn", "mistral-window"},
     .refused = {{"attention_bias", "true"}, {"layer_types", R"(["sliding_attention", "sliding_attention"])"}},
     .is_like_another = true},
    {.architecture = "MinistralForCausalLM",
     .golden_models = {"ministral"},
     .refused = {{"attention_bias", "true"},
                 {"layer_types", R"(["chunked_attention", "full_attention"])"},
                 {"sliding_window", "0"},
                 {"sliding_window", "-1"}},
     .is_like_another = true},
    {.architecture = "SmolLM3ForCausalLM",
     .golden_models = {"smollm3-linear"},
     .refused = {{"attention_bias", "true"},
                 {"mlp_bias", "true"},
                 {"use_sliding_window", "true"},
                 {"no_rope_layers", "[1, 0]"},
                 {"no_rope_layers", "[1, 0, 2]"},
                 {"no_rope_layers", "1"}},
     .is_like_another = true},
    {.architecture = "Olmo2ForCausalLM",
     .golden_models = {"olmo2"},
     .refused = {{"attention_bias", "true"}},
     .scales_queries = true},
    {.architecture = "Olmo3ForCausalLM",
     .golden_models = {"olmo3"},
     .refused = {{"attention_bias", "true"}},
     .is_like_another = true},
    {.architecture = "Gemma3ForCausalLM",
     .golden_models = {"gemma3"},
     .required_keys = {"head_dim"},
     .refused = {{"attention_bias", "true"},
                 {"use_bidirectional_attention", "true"},
                 {"attn_logit_softcapping", "50.0"},
                 {"final_logit_softcapping", "30.0"},
                 {"hidden_activation", R"("silu")"},
                 {"query_pre_attn_scalar", "0"},
                 {"rope_local_base_freq", "0.5"},
                 {"rope_parameters", R"({"sliding_attention": {"rope_type": "linear", "factor": 2.0}})"},
                 {"rope_parameters", R"({"sliding_attention": {"rope_theta": 1e4}, "other": {}})"}},
     .has_windows = true},
    {.architecture = "Phi3ForCausalLM",
     .golden_models = {"phi4"},
     .refused = {{"attention_bias", "true"},
                 {"resid_pdrop", "0.1"},
                 {"embd_pdrop", "0.1"},
                 {"partial_rotary_factor", "0.2"},
                 {"rope_scaling", R"({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]})"},
                 {"rope_scaling", R"({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64})"}},
     .is_like_another = true},
    {.architecture = "GlmForCausalLM",
     .golden_models = {"glm"},
     .refused = {{"attention_bias", "1"}, {"partial_rotary_factor", "1.5"}},
     .is_like_another = true},
    {.architecture = "Glm4ForCausalLM",
     .golden_models = {"glm4"},
     .refused = {{"attention_bias", "1"},
                 {"rope_scaling", R"({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64})"}},
     .rotates_a_part = true,
     .has_attention_bias = true},
};

inline bool is_a_kind_of_block(const TestFamily& family) { return !family.is_like_another; }
inline bool is_shardable(const TestFamily& family) {
  return is_a_kind_of_block(family) && find_family(family.architecture)->can_be_sharded();
}
inline bool is_unfused(const TestFamily& family) {
  const Family& row = *find_family(family.architecture);
  return is_a_kind_of_block(family) && !row.fuses_qkv && !row.fuses_gate_up;
}

// Returns the architectures of the rows that `counts` holds for, in their order.
inline std::vector<std::string> architectures_that(bool (*counts)(const TestFamily&)) {
  std::vector<std::string> architectures;
  for (const TestFamily& family : kTestFamilies)
    if (counts(family)) architectures.push_back(family.architecture);
  return architectures;
}

// One architecture of each kind of block; of those, the ones whose models tensor ranks can share, and the ones whose
// checkpoints have q, k, v, gate and up apart.
inline const std::vector<std::string> kArchitectures = architectures_that(is_a_kind_of_block);
inline const std::vector<std::string> kShardableArchitectures = architectures_that(is_shardable);
inline const std::vector<std::string> kUnfusedArchitectures = architectures_that(is_unfused);

inline const std::vector<std::string> kGoldenModels = [] {
  std::vector<std::string> models;
  for (const TestFamily& family : kTestFamilies)
    models.insert(models.end(), family.golden_models.begin(), family.golden_models.end());
  return models;
}();

// Returns the same widths in another family, with what only that one has.
inline ModelConfig in_family(ModelConfig config, const std::string& architecture) {
  config.architecture = architecture;
  config.attention = {LayerAttention{}};
  config.experts.reset();
  for (const TestFamily& family : kTestFamilies) {
    if (family.architecture != architecture) continue;
    if (family.is_sparse) config.experts = {.count = 6, .chosen = 2, .width = config.mlp, .normalises = true};
    config.attention_bias = family.has_attention_bias;
    if (family.has_windows) {
      // Two layers with a window that ends within a KV block, then one without.
      config.attention.assign(3, {.query_scale = 1.25, .window = 11});
      config.attention.back() = {.rope_theta = 1e6};
    }
    if (family.scales_queries) config.attention.front().query_scale = 1.25;
    if (family.rotates_a_part) {
      config.rotary_dims = std::max<int64_t>(2, config.head_dim / 4 * 2);
      config.attention.front().rope_factors.assign(static_cast<size_t>(config.rotary_dims / 2), 1.0F);
      config.attention.front().rope_factors.resize(static_cast<size_t>(config.head_dim / 2), 0.0F);
    }
    if (!family.scales_rope) continue;
    // The factors fall from 1 to 1/8, as in the llama3 form.
    for (int64_t i = 0; i < config.head_dim / 2; ++i)
      config.attention.front().rope_factors.push_back(1.0F - 0.875F * static_cast<float>(i) /
                                                                 static_cast<float>(config.head_dim / 2));
  }
  return config;
}

// Returns "qwen3_tied" for "qwen3-tied": the names of tests have no hyphens.
inline std::string as_test_name(std::string text) {
  for (char& c : text) c = c == '-' ? '_' : c;
  return text;
}

}  // namespace tandem::model
