// The files of an exported Hugging Face directory, and whether one may be written to a place. No torch.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace tandem::weights {

// These files of a model directory, besides weights and config.json, are copied as they are if the source has them.
// llama.cpp's converter needs tokenizer.model of Phi-3 and Gemma.
inline constexpr auto kCopiedFiles = std::to_array<std::string_view>(
    {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt", "generation_config.json",
     "chat_template.jinja", "chat_template.json", "added_tokens.json", "special_tokens_map.json"});
inline constexpr std::string_view kSingleFile = "model.safetensors";
inline constexpr std::string_view kIndexFile = "model.safetensors.index.json";
inline constexpr std::string_view kAdapterWeights = "adapter_model.safetensors", kAdapterConfig = "adapter_config.json";

// Checks that a directory does not exist, or holds nothing but files of an export, since replacing it removes them; or
// nothing at all unless `overwrite`. Throws UserError.
void check_export_target(const std::string& directory, bool overwrite);

}  // namespace tandem::weights
