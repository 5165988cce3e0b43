// What `tandem train` warns of at its start: flags that are allowed together and most likely not meant so.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/train_config.h"

namespace tandem::run {

// One sentence each, with the flags to change. `config`: checked.
std::vector<std::string> train_warnings(const config::TrainConfig& config);

// Of `tandem sft` too: an adapter with a learning rate for a full model. `full_lr`: the verb's default.
std::optional<std::string> adapter_lr_warning(const config::LoraOptions& lora, double lr, double full_lr);

}  // namespace tandem::run
