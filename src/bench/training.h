// Measures training: the trainer's own step over drawn samples, its optimizer alone, and a whole GRPO step. The
// learning rate is 0, so that the weights keep their bits and every measurement has the same ones.
#pragma once

#include "bench/model.h"
#include "bench/table.h"
#include "config/bench_config.h"

namespace tandem::bench {

// Returns the seconds of the gradients' norm and AdamW over all parameters.
double measure_optimizer(const BenchModel& bench);
void add_optimizer(const BenchModel& bench, const Ceilings& ceilings, double seconds, BenchTable& table);

// Measures forward and backward of a step's samples, of one micro-batch, and the whole step with the optimizer.
void measure_training(const BenchModel& bench, const config::BenchConfig& config, const Ceilings& ceilings,
                      double optimizer_seconds, BenchTable& table);

// Measures rollout and training with drawn advantages: a GRPO step without graders.
void measure_step(const BenchModel& bench, const config::BenchConfig& config, const Ceilings& ceilings,
                  BenchTable& table);

}  // namespace tandem::bench
