// The small models of all tests, as configurations. No torch.
#pragma once

#include "tests/model/families.h"

namespace tandem::model {

// The range is wide enough that logits differ by several units.
constexpr double kSmallInitializerRange = 0.2;

// The model that a forward, a trainer and an engine of tests compute with: `num_layers` layers, hidden states 48 wide,
// four heads over two of keys and values, a vocabulary of 70 tokens.
inline ModelConfig small_config(int64_t num_layers = 2, const std::string& architecture = kArchitectures.front()) {
  ModelConfig config;
  config.hidden = 48;
  config.num_layers = num_layers;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.mlp = 80;
  config.vocab = 70;
  config.max_positions = 256;
  config.tied_embeddings = true;
  config.initializer_range = kSmallInitializerRange;
  config.dtype = Dtype::kFloat32;
  return in_family(config, architecture);
}

// The shape of the golden Qwen3 models, whose plans are added up by hand.
inline ModelConfig tiny_config(int64_t num_layers = 2, Dtype dtype = Dtype::kFloat32) {
  ModelConfig config;
  config.architecture = kArchitectures.front();
  config.hidden = 32;
  config.num_layers = num_layers;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.mlp = 96;
  config.vocab = 512;
  config.max_positions = 1024;
  config.tied_embeddings = true;
  config.dtype = dtype;
  return config;
}

// The two layers have sizes that no two tensors share, and that no vector register divides.
inline ModelConfig odd_config(bool tied) {
  ModelConfig config;
  config.architecture = kArchitectures.front();
  config.hidden = 24;
  config.num_layers = 2;
  config.num_heads = 3;
  config.num_kv_heads = 1;
  config.head_dim = 6;
  config.mlp = 10;
  config.vocab = 33;
  config.tied_embeddings = tied;
  return config;
}

inline ModelConfig qwen3_0_6b() {
  ModelConfig config = tiny_config(28, Dtype::kBFloat16);
  config.hidden = 1024;
  config.num_heads = 16;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.mlp = 3072;
  config.vocab = 151936;
  config.max_positions = 40960;
  return config;
}

inline ModelConfig qwen3_30b_a3b() {
  ModelConfig config = tiny_config(48, Dtype::kBFloat16);
  config.architecture = "Qwen3MoeForCausalLM";
  config.hidden = 2048;
  config.num_heads = 32;
  config.num_kv_heads = 4;
  config.head_dim = 128;
  config.mlp = 6144;
  config.experts = {.count = 128, .chosen = 8, .width = 768, .normalises = true};
  config.vocab = 151936;
  config.max_positions = 40960;
  config.tied_embeddings = false;
  return config;
}

}  // namespace tandem::model
