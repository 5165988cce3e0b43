// What `tandem train` warns of at its start: flags that are allowed together and most likely not meant so.
#pragma once

#include <string>
#include <vector>

#include "config/train_config.h"

namespace tandem::run {

// One sentence each, with the flags to change. `config`: checked.
std::vector<std::string> train_warnings(const config::TrainConfig& config);

}  // namespace tandem::run
