#include "trainer/schedule.h"

#include <cmath>
#include <numbers>

namespace tandem::trainer {

namespace {

double cosine(double progress) { return 0.5 * (std::cos(std::numbers::pi * progress) + 1.0); }

// Returns the share of max_lr - min_lr that is left, as Megatron's OptimizerParamScheduler has it for the style "WSD".
double remaining_of_wsd(const Schedule& s, int64_t finished_steps) {
  const int64_t begin = s.decay_steps - s.wsd_decay_steps;
  if (finished_steps <= begin) return 1.0;
  const double progress = static_cast<double>(finished_steps - begin) / static_cast<double>(s.wsd_decay_steps);
  if (s.wsd_decay_style == "linear") return 1.0 - progress;
  if (s.wsd_decay_style == "cosine") return cosine(progress);
  if (s.wsd_decay_style == "minus_sqrt") return 1.0 - std::sqrt(progress);
  return 2.0 * std::pow(0.5, progress) - 1.0;
}

double remaining(const Schedule& s, int64_t finished_steps) {
  if (s.decay_style == "WSD") return remaining_of_wsd(s, finished_steps);
  const double progress =
      static_cast<double>(finished_steps - s.warmup_steps) / static_cast<double>(s.decay_steps - s.warmup_steps);
  return s.decay_style == "linear" ? 1.0 - progress : cosine(progress);
}

}  // namespace

double learning_rate(const Schedule& s, int64_t finished_steps) {
  if (s.warmup_steps > 0 && finished_steps <= s.warmup_steps) {
    return s.max_lr * static_cast<double>(finished_steps) / static_cast<double>(s.warmup_steps);
  }
  if (s.decay_style == "constant") return s.max_lr;
  if (finished_steps > s.decay_steps) return s.min_lr;
  return s.min_lr + remaining(s, finished_steps) * (s.max_lr - s.min_lr);
}

}  // namespace tandem::trainer
