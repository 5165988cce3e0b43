// The learning rate as a function of the optimizer step: constant, linear or cosine decay after a linear warm-up.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::trainer {

// Megatron's OptimizerParamScheduler in steps, which is what vime's users know.
struct Schedule {
  std::string decay_style = "constant";  // constant, linear, cosine
  double max_lr = 1e-6;
  double min_lr = 0.0;       // reached after decay_steps, held from there on
  int64_t warmup_steps = 0;  // the first of them has learning rate 0, as in Megatron
  int64_t decay_steps = 0;   // counted from the start of the run, warm-up included
};

// UserError names the flag: an unknown style, negative values, a decay that ends before its warm-up.
void check_schedule(const Schedule& schedule);

// The rate of the optimizer step that follows `finished_steps` finished ones.
double learning_rate(const Schedule& schedule, int64_t finished_steps);

}  // namespace tandem::trainer
