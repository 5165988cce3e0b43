#include "trainer/schedule.h"

#include <cmath>
#include <numbers>

namespace tandem::trainer {

double learning_rate(const Schedule& s, int64_t finished_steps) {
  if (s.warmup_steps > 0 && finished_steps <= s.warmup_steps) {
    return s.max_lr * static_cast<double>(finished_steps) / static_cast<double>(s.warmup_steps);
  }
  if (s.decay_style == "constant") return s.max_lr;
  if (finished_steps > s.decay_steps) return s.min_lr;
  const double progress =
      static_cast<double>(finished_steps - s.warmup_steps) / static_cast<double>(s.decay_steps - s.warmup_steps);
  const double remaining =
      s.decay_style == "linear" ? 1.0 - progress : 0.5 * (std::cos(std::numbers::pi * progress) + 1.0);
  return s.min_lr + remaining * (s.max_lr - s.min_lr);
}

}  // namespace tandem::trainer
