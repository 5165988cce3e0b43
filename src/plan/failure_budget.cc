#include "plan/failure_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace tandem::plan {

namespace {

constexpr double kMaxMean = 1e12;
constexpr double kNegligible = 1e-25;  // of the largest probability
constexpr double kSecondsPerMinute = 60.0, kSecondsPerHour = 3600.0, kSecondsPerDay = 86400.0;

std::string duration_text(double seconds) {
  if (seconds < 2.0 * kSecondsPerMinute) return fmt::format("{:.3g} s", seconds);
  if (seconds < 2.0 * kSecondsPerHour) return fmt::format("{:.3g} minutes", seconds / kSecondsPerMinute);
  if (seconds < 2.0 * kSecondsPerDay) return fmt::format("{:.3g} hours", seconds / kSecondsPerHour);
  return fmt::format("{:.4g} days", seconds / kSecondsPerDay);
}

// Two digits, or all digits of the whole part.
std::string count_text(double count) {
  return count < 99.5 ? fmt::format("{:.2g}", count) : fmt::format("{:.0f}", count);
}

std::string things(int64_t number, const char* thing) {
  return fmt::format("{} {}{}", number, thing, number == 1 ? "" : "s");
}

}  // namespace

int64_t poisson_quantile(double mean, double probability) {
  TANDEM_CHECK(mean >= 0.0 && mean <= kMaxMean && probability > 0.0 && probability < 1.0, mean, probability);
  if (mean == 0.0) return 0;
  // Probabilities are relative to that of the mode, since e^-mean is 0 for large means. First their sum, then again up
  // to the quantile.
  const double mode = std::floor(mean);
  double lowest = mode, weight = 1.0, sum = 1.0;
  while (lowest > 0.0 && weight > kNegligible) {
    weight *= lowest / mean;
    lowest -= 1.0;
    sum += weight;
  }
  const double lowest_weight = weight;
  weight = 1.0;
  for (double k = mode + 1.0; weight > kNegligible; k += 1.0) {
    weight *= mean / k;
    sum += weight;
  }
  double k = lowest, reached = lowest_weight;
  for (weight = lowest_weight; reached < probability * sum && weight > 0.0; reached += weight) {
    k += 1.0;
    weight *= mean / k;
  }
  return static_cast<int64_t>(k);
}

double best_interval(double checkpoint_seconds, double seconds_between_failures) {
  const double d = checkpoint_seconds, m = seconds_between_failures;
  TANDEM_CHECK(d > 0.0 && m > 0.0, d, m);
  if (d >= 2.0 * m) return m;
  const double ratio = d / (2.0 * m);
  return std::sqrt(2.0 * d * m) * (1.0 + std::sqrt(ratio) / 3.0 + ratio / 9.0) - d;
}

double share_lost(double interval, double checkpoint_seconds, double restart_seconds, double seconds_between_failures) {
  const double m = seconds_between_failures;
  const double time_per_work =
      m / interval * std::exp(restart_seconds / m) * std::expm1((interval + checkpoint_seconds) / m);
  return 1.0 - 1.0 / time_per_work;
}

FailureBudget failure_budget(const FailureFacts& facts) {
  FailureBudget budget;
  budget.facts = facts;
  const double failures_per_hour = static_cast<double>(facts.devices) / facts.hours_between_failures;
  budget.failures = failures_per_hour * facts.run_hours;
  budget.seconds_between = facts.hours_between_failures / static_cast<double>(facts.training_devices) * kSecondsPerHour;
  budget.interruptions = facts.run_hours * kSecondsPerHour / budget.seconds_between;
  budget.interval_seconds = best_interval(facts.checkpoint_seconds, budget.seconds_between);
  if (facts.step_seconds) {
    budget.save_interval = std::max<int64_t>(1, std::llround(budget.interval_seconds / *facts.step_seconds));
    budget.interval_seconds = static_cast<double>(*budget.save_interval) * *facts.step_seconds;
  }
  budget.share_lost =
      share_lost(budget.interval_seconds, facts.checkpoint_seconds, facts.restart_seconds, budget.seconds_between);
  budget.max_restarts = poisson_quantile(budget.interruptions, kRestartsQuantile);
  budget.spare_hosts = std::min(facts.hosts, poisson_quantile(failures_per_hour * facts.repair_hours, kSparesQuantile));
  return budget;
}

std::string budget_text(const FailureBudget& budget, const std::string& cost_is_from) {
  const FailureFacts& facts = budget.facts;
  std::string text = fmt::format(
      "failures      {} expected in {}: {} of {}, each of which fails once in {:.0f} hours\n",
      count_text(budget.failures), duration_text(facts.run_hours * kSecondsPerHour), things(facts.hosts, "host"),
      things(facts.devices / facts.hosts, "device"), facts.hours_between_failures);
  if (facts.training_devices < facts.devices)
    text += fmt::format("              {} of them end the run; the others cost a device that only samples\n",
                        count_text(budget.interruptions));
  text += fmt::format("checkpoint    {} ({})\n", duration_text(facts.checkpoint_seconds), cost_is_from);
  text += fmt::format("interval      {} of training between two checkpoints lose least: {}\n",
                      duration_text(budget.interval_seconds),
                      budget.save_interval ? fmt::format("--save-interval {}", *budget.save_interval)
                                           : "give --step-seconds to have it in rollouts");
  text += fmt::format("lost          {} % of the time: saving, work done again, and {} for each restart\n",
                      count_text(100.0 * budget.share_lost), duration_text(facts.restart_seconds));
  text += fmt::format("restarts      {} to allow (--max-restarts); 99.9 % of such runs need no more\n",
                      budget.max_restarts);
  return text + fmt::format("spare hosts   {}; 99 % of the time no more are missing, each for {}", budget.spare_hosts,
                            duration_text(facts.repair_hours * kSecondsPerHour));
}

base::Json budget_json(const FailureBudget& budget) {
  base::Json json = base::Json::object();
  json["hosts"] = budget.facts.hosts;
  json["devices"] = budget.facts.devices;
  json["failures"] = budget.failures;
  json["interruptions"] = budget.interruptions;
  json["seconds_between_interruptions"] = budget.seconds_between;
  json["checkpoint_seconds"] = budget.facts.checkpoint_seconds;
  json["interval_seconds"] = budget.interval_seconds;
  if (budget.save_interval) json["save_interval"] = *budget.save_interval;
  json["share_lost"] = budget.share_lost;
  json["max_restarts"] = budget.max_restarts;
  json["spare_hosts"] = budget.spare_hosts;
  return json;
}

}  // namespace tandem::plan
