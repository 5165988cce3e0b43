#include "trainer/schedule.h"

#include <cmath>
#include <numbers>

#include "base/check.h"

namespace tandem::trainer {

void check_schedule(const Schedule& s) {
  const bool decays = s.decay_style == "linear" || s.decay_style == "cosine";
  TANDEM_USER_CHECK(decays || s.decay_style == "constant", "--lr-decay-style", s.decay_style,
                    "is unknown: give constant, linear or cosine");
  TANDEM_USER_CHECK(std::isfinite(s.max_lr) && s.max_lr >= 0, "--lr", s.max_lr, "must be a number of at least 0");
  TANDEM_USER_CHECK(std::isfinite(s.min_lr) && s.min_lr >= 0 && s.min_lr <= s.max_lr, "--min-lr", s.min_lr,
                    "must lie between 0 and --lr", s.max_lr);
  TANDEM_USER_CHECK(s.warmup_steps >= 0, "--lr-warmup-iters", s.warmup_steps, "must be at least 0");
  TANDEM_USER_CHECK(!decays || s.decay_steps > s.warmup_steps, "--lr-decay-iters", s.decay_steps,
                    "must exceed --lr-warmup-iters", s.warmup_steps, "when --lr-decay-style is", s.decay_style);
}

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
