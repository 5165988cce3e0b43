// Shows the time of a run by phase on a page of `tandem view`: bars and a table.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "report/page_parts.h"
#include "report/terminal.h"

namespace tandem::report {

namespace {

constexpr size_t kMaxBars = 60;

// A phase is a consecutive part of a rollout, with the time perf/NAME; the rest of perf/step_time has no name.
struct TimePhase {
  const char* metric;
  const char* title;
};
constexpr std::array<TimePhase, 6> kTimePhases = {{{"perf/rollout_time", "sampling and grading"},
                                                   {"perf/ref_log_probs_time", "scoring by the reference"},
                                                   {"perf/actor_train_time", "training"},
                                                   {"perf/update_weights_time", "weights to processes that sample"},
                                                   {"perf/eval_time", "evaluation"},
                                                   {"perf/save_model_wait_time", "waiting for a checkpoint"}}};
constexpr size_t kSampling = 0;
constexpr size_t kNumTimes = kTimePhases.size() + 1;

// Holds the seconds of each phase by rollout, from the records that have perf/step_time.
struct Times {
  std::vector<std::vector<double>> seconds = std::vector<std::vector<double>>(kNumTimes);  // [phase][record]
  std::vector<double> rollouts;                                                            // [record]
};

Times times_of(const RunFiles& run) {
  Times times;
  const Curve* const total = find_curve(run, "perf/step_time");
  if (total == nullptr) return times;
  std::map<uint32_t, size_t> records;
  for (size_t i = 0; i < total->at.size(); ++i) {
    records[total->at[i]] = i;
    times.rollouts.push_back(run.positions[total->at[i]].rollouts);
  }
  times.seconds.back() = total->values;
  // Where others sample while the run trains, the run waits for less than all of their time.
  const Curve* const waited = find_curve(run, "perf/train_wait_time");
  const bool has_waited = waited != nullptr && waited->at == total->at;
  for (size_t phase = 0; phase < kTimePhases.size(); ++phase) {
    times.seconds[phase].assign(total->values.size(), 0.0);
    const Curve* const curve = find_curve(run, kTimePhases[phase].metric);
    for (size_t i = 0; curve != nullptr && i < curve->at.size(); ++i) {
      const auto record = records.find(curve->at[i]);
      if (record == records.end() || !std::isfinite(curve->values[i])) continue;
      double seconds = curve->values[i];
      if (phase == kSampling && has_waited) seconds = std::min(seconds, waited->values[record->second]);
      times.seconds[phase][record->second] = seconds;
      times.seconds.back()[record->second] -= seconds;
    }
  }
  // An evaluation before the first rollout is in its record and not in its time.
  for (double& rest : times.seconds.back()) rest = std::isfinite(rest) ? std::max(0.0, rest) : 0.0;
  return times;
}

// Returns means over ranges of records, so that the bars of a long run are visible.
std::vector<std::vector<double>> in_bars(const Times& times) {
  const size_t num_records = times.rollouts.size(), num_bars = std::min(kMaxBars, num_records);
  std::vector<std::vector<double>> bars(kNumTimes, std::vector<double>(num_bars, 0.0));
  for (size_t phase = 0; phase < kNumTimes; ++phase) {
    for (size_t bar = 0; bar < num_bars; ++bar) {
      const size_t begin = bar * num_records / num_bars, end = (bar + 1) * num_records / num_bars;
      for (size_t i = begin; i < end; ++i) bars[phase][bar] += times.seconds[phase][i];
      bars[phase][bar] /= static_cast<double>(end - begin);
    }
  }
  return bars;
}

}  // namespace

std::string times_part(const PageRuns& runs) {
  std::vector<Times> all;
  double most = 0.0;
  bool has_any = false;
  for (const RunFiles* run : runs.all()) {
    all.push_back(times_of(*run));
    const auto bars = in_bars(all.back());
    has_any = has_any || !bars[0].empty();
    for (size_t bar = 0; bar < bars[0].size(); ++bar) {
      double sum = 0.0;
      for (const auto& phase : bars) sum += phase[bar];
      most = std::max(most, sum);
    }
  }
  if (!has_any) return "";
  std::string html =
      "<h2>Time</h2>\n<p class=\"faint\">Seconds of a rollout, by what they were taken for; from below in the "
      "order of the table.</p>\n<div class=\"halves\">\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    if (all[i].rollouts.empty()) continue;
    const auto bars = in_bars(all[i]);
    html += fmt::format("<figure class=\"times\"><h3>{}Seconds of a rollout</h3>\n{}", runs.tag(i),
                        bar_chart("seconds of a rollout by phase; the table below has the sums", bars, most,
                                  all[i].rollouts.front() - 1, all[i].rollouts.back()));
    double total = 0.0;
    std::array<double, kNumTimes> sums = {};
    for (size_t phase = 0; phase < kNumTimes; ++phase) {
      for (const double value : all[i].seconds[phase]) sums[phase] += value;
      total += sums[phase];
    }
    html +=
        "<div class=\"scroll\"><table><thead><tr><th>phase</th><th class=\"number\">in all</th>"
        "<th class=\"number\">share</th></tr></thead>\n";
    for (size_t phase = 0; phase < kNumTimes; ++phase) {
      if (!(sums[phase] > 0)) continue;
      html += fmt::format(
          "<tr><td><svg class=\"key\" viewBox=\"0 0 24 12\" aria-hidden=\"true\"><rect "
          "class=\"phase-{}\" width=\"24\" height=\"12\"/></svg> {}</td><td class=\"number\">{}</td>"
          "<td class=\"number\">{:.1f} %</td></tr>\n",
          phase, phase < kTimePhases.size() ? kTimePhases[phase].title : "everything else", clock_text(sums[phase]),
          100 * sums[phase] / total);
    }
    html += "</table></div>";
    if (const size_t records = all[i].rollouts.size(); records > kMaxBars)
      html +=
          fmt::format("<figcaption>Each bar is the mean of {} rollouts or one more.</figcaption>", records / kMaxBars);
    html += "</figure>\n";
  }
  return html + "</div>\n";
}

}  // namespace tandem::report
