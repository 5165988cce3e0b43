#include "run/step_line.h"

#include <fmt/format.h>

namespace tandem::run {

std::string step_line(int64_t step, int64_t num_steps, int64_t num_groups, const Rollout& rollout,
                      const Metrics& metrics, const Metrics& last_step) {
  double zero_signal = 0.0;
  for (const auto& [name, value] : metrics) {
    if (name.starts_with("rollout/zero_std/")) zero_signal += value;
  }
  Metrics shown = metrics;
  shown.insert(last_step.begin(), last_step.end());
  std::string line = fmt::format("step {}/{}  {}", step, num_steps,
                                 summary(shown, {{"reward", "rollout/raw_reward"},
                                                 {"length", "rollout/response_len/mean"},
                                                 {"truncated", "rollout/truncated_ratio"},
                                                 {"loss", "train/loss"},
                                                 {"entropy", "train/entropy_loss"},
                                                 {"kl", "train/kl_loss"},
                                                 {"grad", "train/grad_norm"}}));
  if (shown["train/grad_clipped"] > 0) line += " (clipped)";
  line += fmt::format("  no signal {}/{} groups", zero_signal, num_groups);
  if (rollout.num_failed > 0) line += fmt::format("  failed {}", rollout.num_failed);
  line += fmt::format("  rollout {:.2f} s  train {:.2f} s", shown["perf/rollout_time"], shown["perf/train_time"]);
  return line;
}

}  // namespace tandem::run
