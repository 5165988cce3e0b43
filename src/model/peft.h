// Reads and writes adapter_config.json, which PEFT keeps in a directory with adapter_model.safetensors. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace tandem::model {

// Tells whether a directory holds an adapter as PEFT saves it, and no model.
bool is_adapter_directory(const std::string& directory);

// Holds the content of DIR/adapter_config.json.
struct AdapterFile {
  std::string base;  // the model directory that the adapter is for, as the file has it
  int64_t rank = 0;
  double alpha = 0.0;
  std::vector<std::string> target_modules;  // as written: a word like "all-linear" alone, or names
  bool use_rslora = false;                  // rank-stabilised scaling
  double dropout = 0.0;                     // lora_dropout, in [0, 1)
  // The modules that are trained whole, as written, but "model.embed_tokens" by its last part; empty: none.
  std::vector<std::string> modules_to_save;
  bool ensures_weight_tying = false;  // a tied embedding among them stays tied
};
// Reads that file. UserError, by key, for what is missing or of the wrong type, and for every key that is set and asks
// for something that Tandem does not compute: DoRA, ranks by module, trained biases, an expression for modules, an
// init_lora_weights for which PEFT changes the base.
AdapterFile read_adapter_config(const std::string& directory);
// Reads the file's text; `name` stands for the file in messages.
AdapterFile parse_adapter_config(const std::string& text, const std::string& name);

// Returns the text of adapter_config.json for an adapter of that model directory, whose model may tie its embeddings.
std::string adapter_config_text(const LoraConfig& lora, const std::string& base, bool ties_embeddings = false);

}  // namespace tandem::model
