// Training of a benchmark: the trainer's own step over drawn samples, its optimizer alone, and a whole GRPO step. The
// learning rate is 0, so that the weights keep their bits and every measurement has the same ones.
#pragma once

#include "bench/model.h"
#include "bench/table.h"
#include "config/bench_config.h"

namespace tandem::bench {

// Seconds of the gradients' norm and AdamW over all parameters.
double measure_optimizer(const BenchModel& bench);
void add_optimizer(const BenchModel& bench, const Ceilings& ceilings, double seconds, BenchTable& table);

// Forward and backward of a step's samples, a micro-batch of it, and the whole with the optimizer.
void measure_training(const BenchModel& bench, const config::BenchConfig& config, const Ceilings& ceilings,
                      double optimizer_seconds, BenchTable& table);

// Rollout and training with drawn advantages: a GRPO step without graders.
void measure_step(const BenchModel& bench, const config::BenchConfig& config, const Ceilings& ceilings,
                  BenchTable& table);

}  // namespace tandem::bench
