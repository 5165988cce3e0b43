// Computes the learning rate of an optimizer step: constant, linear, cosine or WSD decay after a linear warm-up.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::trainer {

inline constexpr std::string_view kDecayStyles[] = {"constant", "linear", "cosine", "WSD"};
inline constexpr std::string_view kWsdDecayStyles[] = {"exponential", "linear", "cosine", "minus_sqrt"};

// This is Megatron's OptimizerParamScheduler in steps, which vime's users know.
struct Schedule {
  std::string decay_style = "constant";  // one of kDecayStyles
  double max_lr = 1e-6;
  double min_lr = 0.0;       // reached after decay_steps, then held
  int64_t warmup_steps = 0;  // warm-up steps; the first has learning rate 0, as in Megatron
  int64_t decay_steps = 0;   // counted from the start of the run, warm-up included; more than warmup_steps for a decay
  // The decay style "WSD" (warmup-stable-decay, arXiv 2404.06395) keeps max_lr until wsd_decay_steps before
  // decay_steps, and then falls in this way.
  std::string wsd_decay_style = "exponential";  // one of kWsdDecayStyles
  int64_t wsd_decay_steps = 0;                  // from 1 to decay_steps for "WSD"
};

// Returns the rate of the optimizer step that follows `finished_steps` finished ones.
double learning_rate(const Schedule& schedule, int64_t finished_steps);

}  // namespace tandem::trainer
