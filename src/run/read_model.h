// The model that the flags name, and what of the flags it cannot do. No weight is read.
#pragma once

#include "config/model_options.h"
#include "config/rollout_options.h"
#include "model/config.h"

namespace tandem::run {

// DIR/config.json with the dtype that the run computes in. UserError names what is wrong with the directory.
model::ModelConfig read_model(const config::ModelOptions& options);

// UserError for a stop token that the model cannot sample.
void check_stop_tokens(const config::RolloutOptions& options, const model::ModelConfig& config);

}  // namespace tandem::run
