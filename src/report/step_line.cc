#include "report/step_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/message_text.h"

namespace tandem::report {

namespace {

// Loss and KL are sums of terms of order 1, which cancel on policy to the last bit but one.
constexpr double kRounding = 1e-9;
constexpr std::array<std::string_view, 5> kSumsThatCancel = {"train/loss", "train/pg_loss", "train/kl", "train/kl_loss",
                                                             "train/ppo_kl"};

// Returns "27 of 32 groups have equal rewards", or "give no signal" if equal rewards are not the cause for all of them;
// empty if every group gives the estimator a signal.
std::string signal_text(Metrics& metrics, int64_t num_groups) {
  const double without_signal = metrics["rollout/groups_without_signal"];
  if (without_signal == 0.0) return "";
  const bool are_equal = without_signal == metrics["rollout/groups_with_equal_rewards"];
  const bool is_one = without_signal == 1.0;
  const char* const verb = are_equal ? (is_one ? "has equal rewards" : "have equal rewards")
                                     : (is_one ? "gives no signal" : "give no signal");
  return fmt::format("{} of {} groups {}  ", without_signal, num_groups, verb);
}

// Returns "32 of 57 groups kept (reward of all 0.71), 5 in excess"; empty without dynamic sampling.
std::string filter_text(Metrics& metrics, const Progress& progress) {
  const auto groups = metrics.find("rollout/dynamic_filter/groups");
  if (groups == metrics.end()) return "";
  std::string text = fmt::format("{} of {} groups kept", progress.num_groups, groups->second);
  const auto reward = metrics.find("rollout/dynamic_filter/raw_reward");
  if (reward != metrics.end()) text += fmt::format(" (reward of all {})", number_text(reward->second, 3));
  const double missing = metrics["rollout/dynamic_filter/missing_groups"];
  if (missing > 0) text += fmt::format(", {} too few", missing);
  if (progress.num_excess > 0) text += fmt::format(", {} in excess", progress.num_excess);
  return text + "  ";
}

// Returns whether others sampled while the run trained.
bool is_live(const Metrics& metrics) { return metrics.contains("perf/weights_pause_time"); }

// Returns "age 0.8 (at most 2), trainers idle 12 %  "; empty where every sample is of the newest weights by
// construction.
std::string age_text(Metrics& metrics) {
  const auto mean = metrics.find("rollout/staleness/mean");
  if (mean == metrics.end()) return "";
  std::string text = fmt::format("age {} (at most {})", number_text(mean->second, 2), metrics["rollout/staleness/max"]);
  const auto idle = metrics.find(is_live(metrics) ? "perf/wait_time_ratio" : "perf/rollout_idle_share");
  if (idle != metrics.end())
    text += fmt::format(", {} idle {:.0f} %", is_live(metrics) ? "trainers" : "samplers", 100.0 * idle->second);
  return text + "  ";
}

// Returns the seconds of the step. Where others sample meanwhile, sampling and training overlap.
double seconds_of(Metrics& metrics) {
  return is_live(metrics) ? metrics["perf/step_time"] : metrics["perf/rollout_time"] + metrics["perf/train_time"];
}

}  // namespace

double without_rounding(std::string_view metric, double value) {
  const bool cancels = std::ranges::find(kSumsThatCancel, metric) != kSumsThatCancel.end();
  return cancels && std::abs(value) < kRounding ? 0.0 : value;
}

std::string step_line(const Progress& progress, const Metrics& metrics, const Metrics& last_step, size_t columns) {
  Metrics shown = metrics;
  shown.insert(last_step.begin(), last_step.end());
  for (auto& [name, value] : shown) value = without_rounding(name, value);
  if (shown["rollout/truncated_ratio"] == 0.0) shown.erase("rollout/truncated_ratio");
  std::string numbers = fmt::format("rollout {}/{}  {}", progress.rollout, progress.num_rollouts,
                                    summary(shown,
                                            {{"reward", "rollout/raw_reward"},
                                             {"length", "rollout/response_len/mean"},
                                             {"truncated", "rollout/truncated_ratio"},
                                             {"loss", "train/loss"},
                                             {"entropy", "train/entropy"},
                                             {"kl", "train/kl"},
                                             {"grad", "train/grad_norm"}},
                                            /*digits=*/3));
  if (shown["train/grad_clipped"] > 0) numbers += " (clipped)";
  std::string rest = filter_text(shown, progress) + age_text(shown) + signal_text(shown, progress.num_groups);
  if (progress.num_failed > 0) rest += fmt::format("failed {}", progress.num_failed);
  if (progress.num_dropped > 0) rest += fmt::format(" ({} dropped)", progress.num_dropped);
  if (progress.num_failed > 0) rest += "  ";
  if (progress.num_not_applied_to > 0) rest += fmt::format("{} without a reward  ", progress.num_not_applied_to);
  const auto num_done = static_cast<double>(progress.rollout - progress.first_rollout);
  const double left_s = progress.elapsed_s / num_done * static_cast<double>(progress.num_rollouts - progress.rollout);
  rest += fmt::format("{:.2f} s  elapsed {}  ETA {}", seconds_of(shown), clock_text(progress.elapsed_s),
                      clock_text(left_s));
  if (numbers.size() + 2 + rest.size() <= columns) return numbers + "  " + rest;
  return wrapped(numbers, columns) + "\n    " + wrapped(rest, columns - 4);
}

std::string result_or_resume(bool stopped, int64_t finished, int64_t saved, const std::string& path) {
  if (!stopped) return path;
  if (saved > 0) return fmt::format("--load {} resumes it", path);
  // A run that goes on from another folder's checkpoint is given that with --load.
  const std::string or_fresh = finished > 0 ? "" : fmt::format(", or --load {} --allow-fresh-start,", path);
  return fmt::format("nothing is saved yet: --overwrite{} begins again in {}", or_fresh, path);
}

std::string end_line(bool stopped, const Progress& progress, int64_t saved, int64_t num_warnings,
                     const std::string& path) {
  return fmt::format("{} after {} of {} rollouts, {}; {}", stopped ? "stopped" : "done", progress.rollout,
                     progress.num_rollouts, base::counted(num_warnings, "warning"),
                     result_or_resume(stopped, progress.rollout, saved, path));
}

}  // namespace tandem::report
