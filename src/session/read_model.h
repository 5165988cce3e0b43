// The model that the flags name, and what of the flags it cannot do. No weight is read.
#pragma once

#include <string>

#include "config/lora_options.h"
#include "config/model_options.h"
#include "config/rollout_options.h"
#include "model/config.h"

namespace tandem::session {

// Where the model's files are: --hf-checkpoint, and where that is an adapter of PEFT's, the directory of its base.
struct ModelPlace {
  std::string directory;
  std::string adapter = "";  // "": there is none
};
// UserError: there is no such directory, or an adapter does not name one.
ModelPlace find_model(const std::string& hf_checkpoint);

// config.json with the dtype that is computed in, and the adapter that --hf-checkpoint names. UserError names what is
// wrong with the directories.
model::ModelConfig read_model(const config::ModelOptions& options);
// The same for a verb that needs a model, with the adapter that `lora` asks for. UserError: --hf-checkpoint is an
// adapter, or a flag of `lora` does not go with the model.
model::ModelConfig read_model(const config::ModelOptions& options, const config::LoraOptions& lora);

// UserError for a stop token that the model cannot sample.
void check_stop_tokens(const config::RolloutOptions& options, const model::ModelConfig& config);

}  // namespace tandem::session
