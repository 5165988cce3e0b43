// The models Tandem knows: one row each. Torch-free: parse and layout; the forward is model/model.h.
#pragma once

#include <string>

#include "model/config.h"
#include "weights/layout.h"

namespace tandem::model {

// One row: the name that config.json gives the model, and how its weights are packed.
struct Architecture {
  const char* name;  // "Qwen3ForCausalLM"
  weights::Layout (*layout)(const ModelConfig& config);
};

// The row of that name; nullptr when Tandem does not know it.
const Architecture* find_architecture(const std::string& name);

// The packed layout of a model. Names: embed [V,E]; layers.i.{input_norm [E], qkv [(H+2G)K,E], q_norm [K],
// k_norm [K], o [E,HK], post_norm [E], gate_up [2F,E], down [E,F]}; final_norm [E]; head [V,E] unless tied.
weights::Layout build_layout(const ModelConfig& config);

// "Qwen3ForCausalLM, ...": for the message that refuses an unknown architecture.
std::string supported_architectures();

}  // namespace tandem::model
