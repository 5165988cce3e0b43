// Reads the model that the flags name, and refuses flags that it cannot do. No weight is read.
#pragma once

#include <string>

#include "config/lora_options.h"
#include "config/model_options.h"
#include "config/optimizer_options.h"
#include "config/rollout_options.h"
#include "model/config.h"

namespace tandem::session {

// The place of the model's files: --hf-checkpoint; if that is an adapter in PEFT's format, the directory of its base.
struct ModelPlace {
  std::string directory;
  std::string adapter = "";  // "" if there is none
};
// Throws UserError if there is no such directory, or if an adapter does not name one.
ModelPlace find_model(const std::string& hf_checkpoint);

// Throws UserError unless the directory is there and holds a model, and no adapter. `flag` is "--ref-load DIR", for
// messages.
void check_model_directory(const std::string& flag, const std::string& directory);

// Throws UserError unless the files have the tensors of the model, and of its adapter if there is one. No number is
// read. With `random_init` the model needs no file of weights.
void check_weights(const ModelPlace& place, const model::ModelConfig& config, bool random_init = false);

// Gives the model the dtype that the flags ask for. Throws UserError for a device that has no quantised matrices, or
// none of experts.
void take_dtype(model::ModelConfig& config, const config::ModelOptions& options);

// Reads config.json, with the dtype that is computed in, and the adapter that --hf-checkpoint names. Throws UserError,
// which names what is wrong with the directories.
model::ModelConfig read_model(const config::ModelOptions& options);
// Does the same for a verb that trains a model: the adapter that `lora` asks for, or all weights but those that
// `optimizer` freezes. If --hf-checkpoint is an adapter, that one is trained on, and `lora` has its rank. Throws
// UserError if one of these flags does not go with the model or the adapter.
model::ModelConfig read_model(const config::ModelOptions& options, const config::LoraOptions& lora,
                              const config::OptimizerOptions& optimizer);

// Throws UserError unless the model computes in bfloat16: --bf16 of other trainers is accepted where it changes
// nothing.
void check_bf16(const config::ModelOptions& options);

// Throws UserError for a stop token that the model cannot sample.
void check_stop_tokens(const config::RolloutOptions& options, const model::ModelConfig& config);

}  // namespace tandem::session
