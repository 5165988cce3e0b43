// Asks whether a model samples, trains and goes on from a saved state as it should: the engine's log-probs are the
// trainer's, and the same steps give the same weights.
#pragma once

#include "bench/model.h"
#include "config/bench_config.h"
#include "device_check/answers.h"

namespace tandem::device_check {

// Section "step". The model's weights are drawn, or read where the configuration names a checkpoint.
void ask_step(bench::BenchModel& model, const config::BenchConfig& config, Answers& answers);

}  // namespace tandem::device_check
