// The trainer's configuration from the flags. UserError where they contradict each other.
#pragma once

#include "rl/loss_config.h"
#include "run/optimizer_options.h"
#include "trainer/trainer.h"

namespace tandem::run {

trainer::TrainerConfig trainer_config(const OptimizerOptions& options, const rl::LossConfig& loss, int64_t num_layers,
                                      int64_t total_steps);

// Floating-point operations of one forward over these samples: two per weight of a matrix and token, and the products
// of attention. A backward has twice as many.
double forward_flops(const model::ModelConfig& config, const std::vector<const rl::Sample*>& samples);

}  // namespace tandem::run
