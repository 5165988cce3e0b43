// The families that tests go through, by architecture and by golden model: a new one joins both lists. No torch.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "model/config.h"

namespace tandem::model {

inline const std::vector<std::string> kArchitectures = {"Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM"};

// Folders of tests/golden/models whose weights are there, and of tests/golden/reference.
inline const std::vector<std::string> kGoldenModels = {"qwen3-tied", "qwen3-untied-sharded", "qwen2-tied",
                                                       "llama3-untied-sharded"};

// The same widths in another family, with what only that one has.
inline ModelConfig in_family(ModelConfig config, const std::string& architecture) {
  config.architecture = architecture;
  config.rope_factors.clear();
  if (architecture == "LlamaForCausalLM") {
    // From 1 down to 1/8, as the llama3 form has them.
    for (int64_t i = 0; i < config.head_dim / 2; ++i)
      config.rope_factors.push_back(1.0F - 0.875F * static_cast<float>(i) / static_cast<float>(config.head_dim / 2));
  }
  return config;
}

// For names of tests: "qwen3_tied".
inline std::string as_test_name(std::string text) {
  for (char& c : text) c = c == '-' ? '_' : c;
  return text;
}

}  // namespace tandem::model
