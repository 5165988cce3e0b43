// Warns at the start of `tandem train` of flags that are allowed together and most likely not meant so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/train_config.h"
#include "trainer/schedule.h"

namespace tandem::run {

// Returns one sentence for each, with the flags to change. `config` has been checked.
std::vector<std::string> train_warnings(const config::TrainConfig& config);

// Returns a warning of a warm-up that is longer than the run of `total_steps` optimizer steps, also for `tandem sft`.
std::optional<std::string> warm_up_warning(const trainer::Schedule& schedule, int64_t total_steps);

// Returns a warning of an adapter with a learning rate for a full model, also for `tandem sft`. `full_lr` is the verb's
// default.
std::optional<std::string> adapter_lr_warning(const config::LoraOptions& lora, double lr, double full_lr);

}  // namespace tandem::run
