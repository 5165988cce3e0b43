#include "run/step_line.h"

#include <fmt/format.h>

#include <cmath>

#include "base/message_text.h"

namespace tandem::run {

namespace {

// Loss and KL are sums of terms of order 1 that cancel, on policy to the last bit but one: below this they are
// rounding.
constexpr double kRounding = 1e-9;

// Groups of the rollout whose rewards are all the same.
double num_equal_groups(const Metrics& metrics) {
  double num = 0.0;
  for (const auto& [name, value] : metrics) {
    if (name.starts_with("rollout/zero_std/")) num += value;
  }
  return num;
}

}  // namespace

std::string step_line(const Progress& progress, const Metrics& metrics, const Metrics& last_step) {
  Metrics shown = metrics;
  shown.insert(last_step.begin(), last_step.end());
  for (const char* name : {"train/loss", "train/kl_loss"}) {
    const auto found = shown.find(name);
    if (found != shown.end() && std::abs(found->second) < kRounding) found->second = 0.0;
  }
  if (shown["rollout/truncated_ratio"] == 0.0) shown.erase("rollout/truncated_ratio");
  std::string line = fmt::format("rollout {}/{}  {}", progress.rollout, progress.num_rollouts,
                                 summary(shown,
                                         {{"reward", "rollout/raw_reward"},
                                          {"length", "rollout/response_len/mean"},
                                          {"truncated", "rollout/truncated_ratio"},
                                          {"loss", "train/loss"},
                                          {"entropy", "train/entropy_loss"},
                                          {"kl", "train/kl_loss"},
                                          {"grad", "train/grad_norm"}},
                                         /*digits=*/3));
  if (shown["train/grad_clipped"] > 0) line += " (clipped)";
  if (const double equal = num_equal_groups(metrics); equal > 0) {
    line += fmt::format("  {} of {} groups {} equal rewards", equal, progress.num_groups, equal == 1 ? "has" : "have");
  }
  if (progress.num_failed > 0) line += fmt::format("  failed {}", progress.num_failed);
  if (progress.num_dropped > 0) line += fmt::format(" ({} dropped)", progress.num_dropped);
  const auto num_done = static_cast<double>(progress.rollout - progress.first_rollout);
  const double left_s = progress.elapsed_s / num_done * static_cast<double>(progress.num_rollouts - progress.rollout);
  return line + fmt::format("  {:.2f} s  elapsed {}  ETA {}", shown["perf/rollout_time"] + shown["perf/train_time"],
                            clock_text(progress.elapsed_s), clock_text(left_s));
}

std::string end_line(bool stopped, const Progress& progress, int64_t saved, int64_t num_warnings,
                     const std::string& path) {
  std::string last = path;
  if (stopped && saved > 0) last = fmt::format("--load {} goes on", path);
  if (stopped && saved == 0) last = fmt::format("nothing is saved yet, --overwrite begins again in {}", path);
  return fmt::format("{} after {} of {} rollouts, {}; {}", stopped ? "stopped" : "done", progress.rollout,
                     progress.num_rollouts, base::counted(num_warnings, "warning"), last);
}

}  // namespace tandem::run
