// A model of two layers and odd sizes, as its layout.
#pragma once

#include "model/registry.h"

namespace tandem::weights {

inline model::ModelConfig small_config(bool tied) {
  model::ModelConfig config;
  config.architecture = "Qwen3ForCausalLM";
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

inline Layout small_layout(bool tied = false) { return model::build_layout(small_config(tied)); }

}  // namespace tandem::weights
