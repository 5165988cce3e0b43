// LoRA adapters: which matrices have one, and their tensors. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/config.h"
#include "weights/layout.h"

namespace tandem::model {

// Modules that can have an adapter, by the last part of their Hugging Face names: every matrix of a block.
std::vector<std::string> adaptable_modules(const ModelConfig& config);

// The modules that `names` stand for, in the model's order: "all-linear" alone, or names, several of which may be one
// text with commas. UserError that begins with `place`: a name that the model has not, or one that is given twice.
std::vector<std::string> parse_target_modules(const std::vector<std::string>& names, const ModelConfig& config,
                                              const std::string& place);

// Packed names of the two matrices of an adapter: these behind the name of the packed matrix that it is for.
inline constexpr const char* kLoraA = ".lora_a";
inline constexpr const char* kLoraB = ".lora_b";

// The adapter's tensors, for a configuration that has one: for each packed matrix with target modules the A of all of
// them, one below the other, and likewise the B. Their Hugging Face names are PEFT's.
weights::Layout adapter_layout(const ModelConfig& config);
// What is trained: the adapter where there is one, else the weights.
weights::Layout trained_layout(const ModelConfig& config);

// Columns of a packed matrix's result that belong to one target module.
struct AdapterWindow {
  int64_t begin = 0, count = 0;
};
// By packed name of the matrix; a matrix without a target module is not in it. Empty without an adapter.
using AdapterWindows = std::map<std::string, std::vector<AdapterWindow>>;
AdapterWindows adapter_windows(const ModelConfig& config);

}  // namespace tandem::model
