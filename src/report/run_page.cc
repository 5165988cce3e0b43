#include "report/run_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "base/message_text.h"
#include "base/sha256.h"
#include "report/chart.h"
#include "report/page_text.h"
#include "report/report.h"
#include "report/run_page_assets.h"
#include "report/terminal.h"

namespace tandem::report {

namespace {

constexpr size_t kMainPoints = 600, kOtherPoints = 120, kMaxOtherCharts = 300, kMaxConstants = 500, kMaxFaults = 60;
constexpr size_t kMaxBars = 60;
constexpr double kGiB = 1 << 30, kMiB = 1 << 20;
constexpr const char* kSolid =
    "<svg class=\"key\" viewBox=\"0 0 24 12\" aria-hidden=\"true\"><path class=\"line run-0\" "
    "d=\"M1 6L23 6\"/></svg>";
constexpr const char* kDashed =
    "<svg class=\"key\" viewBox=\"0 0 24 12\" aria-hidden=\"true\"><path class=\"line run-1\" "
    "d=\"M1 6L23 6\"/></svg>";

// A chart of its own: the first of these metrics that a run has.
struct Panel {
  const char* title;
  const char* says;
  std::vector<const char*> metrics;
};
const std::vector<Panel>& panels() {
  static const std::vector<Panel> kPanels = {
      {"Reward", "mean over the samples of a rollout", {"rollout/raw_reward"}},
      {"Response length", "mean, in tokens", {"rollout/response_len/mean"}},
      {"Truncated responses", "share of the samples", {"rollout/truncated_ratio"}},
      {"Entropy", "of the policy, per token", {"train/entropy", "train/entropy_loss"}},
      {"KL divergence", "from the reference, per token", {"train/kl", "train/kl_loss"}},
      {"Gradient norm", "before clipping", {"train/grad_norm"}},
      {"Loss", "", {"train/loss"}},
      {"Clipped tokens", "share whose ratio was clipped", {"train/pg_clipfrac"}},
      {"Trainer against sampler",
       "mean difference of the log-probs of a token",
       {"train/train_rollout_logprob_abs_diff"}},
      {"Groups without a signal", "all their advantages are 0", {"rollout/groups_without_signal"}},
      {"Learning rate", "", {"train/lr-pg_0"}},
      {"Speed", "tokens per second", {"perf/tokens_per_gpu_per_sec", "perf/actor_train_tok_per_s"}},
  };
  return kPanels;
}

// What follows one another in a rollout, as perf/NAME; the rest of perf/step_time has no name.
struct TimePhase {
  const char* metric;
  const char* title;
};
constexpr std::array<TimePhase, 5> kTimePhases = {{{"perf/rollout_time", "sampling and grading"},
                                                   {"perf/ref_log_probs_time", "scoring by the reference"},
                                                   {"perf/actor_train_time", "training"},
                                                   {"perf/eval_time", "evaluation"},
                                                   {"perf/save_model_wait_time", "waiting for a checkpoint"}}};
constexpr size_t kNumTimes = kTimePhases.size() + 1;

// Base64 (RFC 4648) of a hash that is given in hexadecimal digits, as a Content-Security-Policy names it.
std::string base64_of_hex(std::string_view hex) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<uint32_t> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<uint32_t>(std::stoul(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) bits = bits << 8 | (j < count ? bytes[i + j] : 0);
    for (size_t j = 0; j < 4; ++j) text += j <= count ? kLetters[bits >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

std::string hash_source(std::string_view text) { return "'sha256-" + base64_of_hex(base::sha256(text)) + "'"; }

std::string last_folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos || slash + 1 == path.size() ? path : path.substr(slash + 1);
}

// A text as config.toml writes it, without the quotes around it.
std::string unquoted(const std::string& value) {
  return value.size() >= 2 && value.front() == '"' && value.back() == '"' ? value.substr(1, value.size() - 2) : value;
}

const Curve* find_curve(const RunFiles& run, const std::string& name) {
  const auto found = run.curves.find(name);
  return found == run.curves.end() ? nullptr : &found->second;
}

// The data sets that a run evaluates: "held_out" where there are eval/held_out and eval/held_out/response_len/mean.
std::vector<std::string> evaluated(const RunFiles& run) {
  constexpr std::string_view kBegin = "eval/", kEnd = "/response_len/mean";
  std::vector<std::string> names;
  for (const auto& [name, curve] : run.curves) {
    if (!name.starts_with(kBegin) || !name.ends_with(kEnd) || name.size() <= kBegin.size() + kEnd.size()) continue;
    const std::string set = name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size());
    if (run.curves.contains("eval/" + set)) names.push_back(set);
  }
  return names;
}

// Of a supervised run: those with eval/NAME/loss.
std::vector<std::string> evaluated_losses(const RunFiles& run) {
  constexpr std::string_view kBegin = "eval/", kEnd = "/loss";
  std::vector<std::string> names;
  for (const auto& [name, curve] : run.curves) {
    if (name.starts_with(kBegin) && name.ends_with(kEnd) && name.size() > kBegin.size() + kEnd.size())
      names.push_back(name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size()));
  }
  return names;
}

// The least, the greatest and the last finite value.
struct Extremes {
  double first = 0, last = 0, lowest = std::numeric_limits<double>::infinity(), highest = -lowest;
  int64_t num_finite = 0, num_not_finite = 0;

  explicit Extremes(const Curve& curve) {
    for (const double value : curve.values) {
      if (!std::isfinite(value)) {
        ++num_not_finite;
        continue;
      }
      if (num_finite++ == 0) first = value;
      last = value;
      lowest = std::min(lowest, value);
      highest = std::max(highest, value);
    }
  }

  std::string text() const {
    std::string text = "no finite value";
    if (num_finite == 1) text = number_text(last, 4);
    if (num_finite > 1)
      text = fmt::format("first {}, last {}, lowest {}, highest {}", number_text(first, 4), number_text(last, 4),
                         number_text(lowest, 4), number_text(highest, 4));
    if (num_not_finite > 0)
      text += fmt::format("; <span class=\"warn\">{} not finite</span>",
                          base::with_commas(num_not_finite) + (num_not_finite == 1 ? " value is" : " values are"));
    return text;
  }
};

std::string joined(const std::vector<std::string>& parts, const char* between) {
  return fmt::format("{}", fmt::join(parts, between));
}

class PageWriter {
 public:
  PageWriter(const RunFiles& run, const RunFiles* other) {
    runs_.push_back(&run);
    if (other != nullptr) runs_.push_back(other);
    const bool has_steps = std::ranges::none_of(runs_, &RunFiles::has_rollouts);
    rollouts_title_ = has_steps ? "steps" : "rollouts";
    for (const Axis axis : kAxes) {
      AxisRange& range = ranges_[static_cast<size_t>(axis)];
      range = {std::numeric_limits<double>::infinity(), 0.0};
      for (const RunFiles* each : runs_) {
        for (const Position& position : each->positions) {
          range.begin = std::min(range.begin, at_axis(position, axis));
          range.end = std::max(range.end, at_axis(position, axis));
        }
      }
      // From where the first rollout began: a run may go on from another one's checkpoint.
      range.begin = axis == Axis::kRollouts ? std::max(0.0, std::ceil(range.begin) - 1) : 0.0;
    }
    has_equal_names_ = is_pair() && last_folder(runs_[0]->path) == last_folder(runs_[1]->path);
  }

  std::string page() {
    head();
    curves();
    faults();
    times();
    memory();
    samples();
    options();
    logs();
    others();
    left_out();
    page_ += fmt::format("</main>\n<script>{}</script>\n</body>\n</html>\n", kPageScript);
    return std::move(page_);
  }

 private:
  bool is_pair() const { return runs_.size() == 2; }

  std::string name_of(size_t run) const {
    return has_equal_names_ ? text_.path(runs_[run]->path) : text_(last_folder(runs_[run]->path));
  }

  // Above what is told of one run of two.
  std::string heading(size_t run) const {
    return is_pair() ? fmt::format("<h3>{} {}</h3>", run == 0 ? kSolid : kDashed, name_of(run)) : "";
  }

  // Before what is told of one run of two: its line and its name.
  std::string tag(size_t run) const {
    return is_pair() ? fmt::format("{} {}: ", run == 0 ? kSolid : kDashed, name_of(run)) : "";
  }

  std::string state_of(const RunFiles& run) const {
    const Position& last = run.positions.back();
    double finished = 0, tokens = 0;
    for (const Position& position : run.positions) {
      finished = std::max(finished, std::floor(position.rollouts));
      tokens = std::max(tokens, position.tokens);
    }
    std::string text = base::with_commas(std::llround(finished));
    const auto planned = run.config.find("num-rollout");
    const bool has_plan = planned != run.config.end() && planned->second.size() < 12;
    if (has_plan) text += " of " + text_(planned->second);
    text += run.has_rollouts ? " rollouts" : " steps";
    text += fmt::format(", {} of work", clock_text(last.seconds));
    if (tokens > 0)
      text += fmt::format(", {} tokens {}", short_number(tokens), run.has_rollouts ? "sampled" : "trained on");
    return text;
  }

  void head() {
    page_ = kPageMark;
    std::vector<std::string> names;
    for (size_t i = 0; i < runs_.size(); ++i) names.push_back(name_of(i));
    page_ += fmt::format(
        "<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src {}; script-src {}; "
        "base-uri 'none'; form-action 'none'\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<meta name=\"referrer\" content=\"no-referrer\">\n<title>{} - Tandem</title>\n<style>{}</style>\n</head>\n"
        "<body>\n",
        hash_source(kPageStyle), hash_source(kPageScript), joined(names, " and "), kPageStyle);
    page_ += fmt::format("<h1>{}</h1>\n<div class=\"runs\">\n", joined(names, " and "));
    for (size_t i = 0; i < runs_.size(); ++i) {
      const RunFiles& run = *runs_[i];
      page_ += fmt::format("<div><p>{}<strong>{}</strong></p>", tag(i), state_of(run));
      page_ += fmt::format("<p class=\"faint\">{} in {}", run.has_rollouts ? "a run" : "a supervised run",
                           text_.path(run.path));
      const auto model = run.config.find("hf-checkpoint");
      if (model != run.config.end()) page_ += fmt::format("; model {}", text_.path(unquoted(model->second)));
      page_ += "</p></div>\n";
    }
    page_ += "</div>\n";
    // In the order of kAxes. The buttons stand before all that they change, so that the style alone can do it.
    page_ += fmt::format(
        "<input class=\"axis\" type=\"radio\" name=\"x\" id=\"x-rollouts\" checked>"
        "<input class=\"axis\" type=\"radio\" name=\"x\" id=\"x-time\">"
        "<input class=\"axis\" type=\"radio\" name=\"x\" id=\"x-tokens\">\n"
        "<div class=\"axes\"><span>Curves by</span><label for=\"x-rollouts\">{}</label>"
        "<label for=\"x-time\">time</label><label for=\"x-tokens\">tokens</label>",
        rollouts_title_);
    for (size_t i = 0; i < runs_.size() && is_pair(); ++i) {
      page_ += fmt::format("<span>{} {}</span>", i == 0 ? kSolid : kDashed, name_of(i));
    }
    page_ += "</div>\n<main>\n";
  }

  // One figure. `captions`: HTML, a line each.
  void figure(const std::string& title, const std::string& says, std::span<const ChartLine> lines,
              const std::vector<std::string>& captions, size_t max_points) {
    page_ += fmt::format("<figure class=\"line-chart\"><h3>{}{}</h3>\n", title,
                         says.empty() ? "" : " <span class=\"faint\">" + says + "</span>");
    page_ += line_chart(title, lines, ranges_, rollouts_title_, max_points);
    page_ += fmt::format("<output></output><figcaption>{}</figcaption></figure>\n", joined(captions, "<br>"));
  }

  void add_line(size_t run, const std::string& metric, const std::string& label, int mark,
                std::vector<ChartLine>& lines, std::vector<std::string>& captions) {
    const Curve* const curve = find_curve(*runs_[run], metric);
    if (curve == nullptr) return;
    shown_.insert(metric);
    const std::string name = label.empty() ? "" : text_(label);
    const std::string in_run = is_pair() ? name_of(run) : "";
    std::string read = name.empty() ? in_run : in_run.empty() ? name : name + ", " + in_run;
    if (read.empty()) read = "value";
    lines.push_back({.label = read,
                     .run = static_cast<int>(run),
                     .mark = mark,
                     .curve = curve,
                     .positions = &runs_[run]->positions});
    captions.push_back(fmt::format("{}{}{}", mark < 0 ? tag(run) : mark_svg(mark, static_cast<int>(run)) + " ",
                                   mark < 0 ? "" : read + ": ", Extremes(*curve).text()));
  }

  void curves() {
    page_ += "<h2>Curves</h2>\n<div class=\"charts\">\n";
    for (const Panel& panel : panels()) {
      std::vector<ChartLine> lines;
      std::vector<std::string> captions;
      const std::string_view title = panel.title;
      std::set<std::string> metrics;
      for (size_t i = 0; i < runs_.size(); ++i) {
        const auto metric = std::ranges::find_if(
            panel.metrics, [&](const char* name) { return find_curve(*runs_[i], name) != nullptr; });
        if (metric != panel.metrics.end()) {
          metrics.insert(*metric);
          add_line(i, *metric, "", -1, lines, captions);
        }
      }
      const bool is_reward = title == "Reward", is_loss = title == "Loss";
      for (size_t i = 0; i < runs_.size() && (is_reward || is_loss); ++i) {
        int mark = 0;
        for (const std::string& set : is_reward ? evaluated(*runs_[i]) : evaluated_losses(*runs_[i])) {
          add_line(i, is_reward ? "eval/" + set : "eval/" + set + "/loss", "evaluation " + set, mark++, lines,
                   captions);
        }
      }
      if (lines.empty()) continue;
      captions.push_back(fmt::format("<code>{}</code>", fmt::join(metrics, ", ")));
      figure(panel.title, panel.says, lines, captions, kMainPoints);
    }
    page_ += "</div>\n";
  }

  // Metrics that count what went wrong.
  static bool is_fault(const std::string& name) {
    return (name.starts_with("fault/") && name != "fault/skipped_steps") || name == "train/step_skipped" ||
           name.ends_with("/grader_failed") || name.find("/grader_failed/") != std::string::npos ||
           name.ends_with("/dropped");
  }

  void faults() {
    page_ += "<h2>What went wrong</h2>\n";
    std::string rows;
    size_t num_rows = 0;
    for (size_t i = 0; i < runs_.size(); ++i) {
      for (const auto& [name, curve] : runs_[i]->curves) {
        if (!is_fault(name)) continue;
        shown_.insert(name);
        int64_t count = 0;
        double greatest = 0;
        size_t last = 0;
        for (size_t at = 0; at < curve.values.size(); ++at) {
          if (curve.values[at] == 0.0) continue;
          ++count;
          if (!(curve.values[at] <= greatest)) greatest = curve.values[at];
          last = curve.at[at];
        }
        if (count == 0) continue;
        if (++num_rows > kMaxFaults) continue;
        rows += fmt::format(
            "<tr><td>{}<code>{}</code></td><td class=\"number\">{} of {}</td>"
            "<td class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n",
            tag(i), text_(name), base::with_commas(count), base::with_commas(std::ssize(curve.values)),
            number_text(greatest, 4), number_text(runs_[i]->positions[last].rollouts, 6));
      }
    }
    if (rows.empty()) {
      page_ += "<p>Nothing that is counted: no failed grading, no skipped step, no write that was refused.</p>\n";
      return;
    }
    if (num_rows > kMaxFaults)
      notes_.push_back(fmt::format("{} more counts of what went wrong are left out.", num_rows - kMaxFaults));
    page_ += fmt::format(
        "<div class=\"scroll\"><table><tr><th>count</th><th class=\"number\">records with it</th>"
        "<th class=\"number\">most in one</th><th class=\"number\">last after {}</th></tr>\n{}"
        "</table></div>\n",
        rollouts_title_, rows);
  }

  // Seconds of each phase by rollout, from the records that have perf/step_time.
  struct Times {
    std::vector<std::vector<double>> seconds = std::vector<std::vector<double>>(kNumTimes);  // [phase][record]
    std::vector<double> rollouts;                                                            // [record]
  };

  static Times times_of(const RunFiles& run) {
    Times times;
    const Curve* const total = find_curve(run, "perf/step_time");
    if (total == nullptr) return times;
    std::map<uint32_t, size_t> records;
    for (size_t i = 0; i < total->at.size(); ++i) {
      records[total->at[i]] = i;
      times.rollouts.push_back(run.positions[total->at[i]].rollouts);
    }
    times.seconds.back() = total->values;
    for (size_t phase = 0; phase < kTimePhases.size(); ++phase) {
      times.seconds[phase].assign(total->values.size(), 0.0);
      const Curve* const curve = find_curve(run, kTimePhases[phase].metric);
      for (size_t i = 0; curve != nullptr && i < curve->at.size(); ++i) {
        const auto record = records.find(curve->at[i]);
        if (record == records.end() || !std::isfinite(curve->values[i])) continue;
        times.seconds[phase][record->second] = curve->values[i];
        times.seconds.back()[record->second] -= curve->values[i];
      }
    }
    // An evaluation before the first rollout is in its record and not in its time.
    for (double& rest : times.seconds.back()) rest = std::isfinite(rest) ? std::max(0.0, rest) : 0.0;
    return times;
  }

  // Means over stretches of records, so that a long run has bars that can be seen.
  static std::vector<std::vector<double>> in_bars(const Times& times) {
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

  void times() {
    std::vector<Times> all;
    double most = 0.0;
    bool has_any = false;
    for (const RunFiles* run : runs_) {
      all.push_back(times_of(*run));
      const auto bars = in_bars(all.back());
      has_any = has_any || !bars[0].empty();
      for (size_t bar = 0; bar < bars[0].size(); ++bar) {
        double sum = 0.0;
        for (const auto& phase : bars) sum += phase[bar];
        most = std::max(most, sum);
      }
    }
    if (!has_any) return;
    page_ +=
        "<h2>Time</h2>\n<p class=\"faint\">Seconds of a rollout, by what they were taken for; from below in the "
        "order of the table.</p>\n<div class=\"halves\">\n";
    for (size_t i = 0; i < runs_.size(); ++i) {
      if (all[i].rollouts.empty()) continue;
      const auto bars = in_bars(all[i]);
      page_ += fmt::format("<figure class=\"times\"><h3>{}Seconds of a rollout</h3>\n{}", tag(i),
                           bar_chart("seconds of a rollout by phase; the table below has the sums", bars, most,
                                     all[i].rollouts.front() - 1, all[i].rollouts.back()));
      double total = 0.0;
      std::array<double, kNumTimes> sums = {};
      for (size_t phase = 0; phase < kNumTimes; ++phase) {
        for (const double value : all[i].seconds[phase]) sums[phase] += value;
        total += sums[phase];
      }
      page_ +=
          "<div class=\"scroll\"><table><tr><th>phase</th><th class=\"number\">in all</th>"
          "<th class=\"number\">share</th></tr>\n";
      for (size_t phase = 0; phase < kNumTimes; ++phase) {
        if (!(sums[phase] > 0)) continue;
        page_ += fmt::format(
            "<tr><td><svg class=\"key\" viewBox=\"0 0 24 12\" aria-hidden=\"true\"><rect "
            "class=\"phase-{}\" width=\"24\" height=\"12\"/></svg> {}</td><td class=\"number\">{}</td>"
            "<td class=\"number\">{:.1f} %</td></tr>\n",
            phase, phase < kTimePhases.size() ? kTimePhases[phase].title : "everything else", clock_text(sums[phase]),
            100 * sums[phase] / total);
      }
      page_ += "</table></div>";
      if (const size_t records = all[i].rollouts.size(); records > kMaxBars)
        page_ += fmt::format("<figcaption>Each bar is the mean of {} rollouts or one more.</figcaption>",
                             records / kMaxBars);
      page_ += "</figure>\n";
    }
    page_ += "</div>\n";
  }

  static std::string bytes_text(int64_t bytes) {
    const auto value = static_cast<double>(bytes);
    return value >= kGiB ? fmt::format("{:.2f} GiB", value / kGiB) : fmt::format("{:.1f} MiB", value / kMiB);
  }

  void memory() {
    if (std::ranges::all_of(runs_, [](const RunFiles* run) { return run->memory.empty(); })) return;
    page_ +=
        "<h2>Memory</h2>\n<p class=\"faint\">The most that was taken on the device so far, beside what the plan had "
        "stated. The frame is the plan, the filled part what was measured.</p>\n<div class=\"halves\">\n";
    for (size_t i = 0; i < runs_.size(); ++i) {
      int64_t most = 1;
      for (const MemoryUse& use : runs_[i]->memory) most = std::max({most, use.measured_bytes, use.planned_bytes});
      if (runs_[i]->memory.empty()) continue;
      page_ += fmt::format(
          "<div class=\"scroll\">{}<table><tr><th>phase</th><th>for</th><th class=\"number\">measured"
          "</th><th class=\"number\">planned</th><th></th></tr>\n",
          heading(i));
      for (const MemoryUse& use : runs_[i]->memory) {
        const auto width = [&](int64_t bytes) {
          return 148.0 * static_cast<double>(bytes) / static_cast<double>(most);
        };
        page_ += fmt::format(
            "<tr{}><td>{}</td><td>{}</td><td class=\"number{}\">{}</td><td class=\"number\">{}</td><td><svg "
            "class=\"bar\" viewBox=\"0 0 150 12\" aria-hidden=\"true\"><rect class=\"measured\" x=\"1\" y=\"2\" "
            "width=\"{:.1f}\" height=\"8\"/><rect class=\"planned\" x=\"1\" y=\"1\" width=\"{:.1f}\" height=\"10\"/>"
            "</svg></td></tr>\n",
            use.tag.empty() ? " class=\"sum\"" : "", text_(use.phase), use.tag.empty() ? "all at once" : text_(use.tag),
            use.measured_bytes > use.planned_bytes ? " warn" : "", bytes_text(use.measured_bytes),
            bytes_text(use.planned_bytes), width(use.measured_bytes), width(use.planned_bytes));
      }
      page_ += "</table></div>\n";
    }
    page_ += "</div>\n";
  }

  void sample(const ShownSample& sample, const std::string& prompt_above) {
    page_ += "<article><p>";
    if (sample.reward) page_ += fmt::format("<strong>reward {}</strong>", number_text(*sample.reward, 4));
    if (!sample.reward) page_ += "<strong>no reward</strong>";
    if (sample.advantage) page_ += fmt::format(", advantage {}", number_text(*sample.advantage, 4));
    page_ += fmt::format(", {}, {}", base::counted(sample.response_length, "token"), text_(sample.status));
    if (sample.mean_logprob) page_ += fmt::format(", mean log-prob {}", number_text(*sample.mean_logprob, 4));
    for (const std::string& mark : sample.marks) page_ += fmt::format(" <span class=\"chip\">{}</span>", mark);
    page_ += "</p>\n";
    if (!sample.failure.empty()) page_ += fmt::format("<p class=\"warn\">{}</p>\n", text_(sample.failure));
    if (sample.prompt != prompt_above)
      page_ += fmt::format("<p class=\"faint\">prompt of group {}</p><pre>{}</pre>\n", sample.group_id,
                           text_(sample.prompt));
    if (sample.prompt == prompt_above) page_ += "<p class=\"faint\">the same prompt</p>\n";
    page_ += fmt::format("<p class=\"faint\">response</p><pre>{}</pre>\n", text_(sample.response));
    if (!sample.label.empty()) page_ += fmt::format("<p class=\"faint\">label: {}</p>\n", text_(sample.label));
    page_ += "</article>\n";
  }

  void samples() {
    if (std::ranges::all_of(runs_, [](const RunFiles* run) { return run->samples.empty(); })) return;
    page_ += "<h2>Samples</h2>\n<div class=\"halves\">\n";
    for (size_t i = 0; i < runs_.size(); ++i) {
      page_ += fmt::format("<div>{}\n", heading(i));
      if (runs_[i]->samples.empty()) page_ += "<p class=\"faint\">none</p>";
      for (const SampleSet& set : runs_[i]->samples) {
        page_ += fmt::format("<details{}><summary><code>{}</code>: {} of {}", is_first_of_page(set) ? " open" : "",
                             text_(set.file), set.samples.size(), base::counted(set.num_samples, "sample"));
        if (set.num_with_reward > 0) page_ += fmt::format(", mean reward {}", number_text(set.mean_reward, 4));
        page_ += "</summary>\n";
        std::string prompt_above = "\xff";  // no prompt has it: they are UTF-8
        for (const ShownSample& each : set.samples) {
          sample(each, prompt_above);
          prompt_above = each.prompt;
        }
        page_ += "</details>\n";
      }
      page_ += "</div>\n";
    }
    page_ += "</div>\n";
  }

  bool is_first_of_page(const SampleSet& set) const { return !is_pair() && &set == &runs_[0]->samples.front(); }

  void options() {
    page_ += "<h2>Options</h2>\n";
    if (is_pair()) {
      std::set<std::string> names;
      for (const RunFiles* run : runs_) {
        for (const auto& [name, value] : run->config) names.insert(name);
      }
      std::string rows;
      for (const std::string& name : names) {
        const auto value_in = [&](size_t run) {
          const auto found = runs_[run]->config.find(name);
          return found == runs_[run]->config.end() ? std::string("unset") : text_(found->second);
        };
        if (value_in(0) == value_in(1)) continue;
        rows += fmt::format("<tr><td><code>{}</code></td><td>{}</td><td>{}</td></tr>\n", text_(name), value_in(0),
                            value_in(1));
      }
      page_ += rows.empty() ? "<p>The options of both runs are the same.</p>\n"
                            : fmt::format(
                                  "<p>What differs:</p><div class=\"scroll\"><table><tr><th>option</th><th>{}"
                                  "</th><th>{}</th></tr>\n{}</table></div>\n",
                                  name_of(0), name_of(1), rows);
    }
    for (size_t i = 0; i < runs_.size(); ++i) {
      if (runs_[i]->config_text.empty()) continue;
      page_ += fmt::format("<details><summary>{}config.toml</summary><pre>{}</pre></details>\n", tag(i),
                           text_(runs_[i]->config_text));
    }
  }

  void logs() {
    if (std::ranges::all_of(runs_, [](const RunFiles* run) { return run->log_tail.empty(); })) return;
    page_ += "<h2>Log</h2>\n";
    for (size_t i = 0; i < runs_.size(); ++i) {
      if (runs_[i]->log_tail.empty()) continue;
      page_ += fmt::format("<details><summary>{}the end of log.txt</summary><pre>{}</pre></details>\n", tag(i),
                           text_(runs_[i]->log_tail));
    }
  }

  void others() {
    std::set<std::string> names;
    for (const RunFiles* run : runs_) {
      for (const auto& [name, curve] : run->curves) {
        if (!shown_.contains(name)) names.insert(name);
      }
    }
    if (names.empty()) return;
    std::string constants;
    size_t num_charts = 0, num_constants = 0;
    page_ += fmt::format("<h2>Everything else</h2>\n<details><summary>{} more</summary>\n<div class=\"charts\">\n",
                         base::counted(static_cast<int64_t>(names.size()), "metric"));
    for (const std::string& name : names) {
      std::vector<ChartLine> lines;
      std::vector<std::string> captions;
      bool is_constant = true;
      for (size_t i = 0; i < runs_.size(); ++i) {
        add_line(i, name, "", -1, lines, captions);
        if (const Curve* const curve = find_curve(*runs_[i], name); curve != nullptr) {
          const Extremes extremes(*curve);
          is_constant = is_constant && extremes.num_not_finite == 0 && extremes.lowest == extremes.highest;
        }
      }
      if (is_constant) {
        if (++num_constants <= kMaxConstants)
          constants +=
              fmt::format("<tr><td><code>{}</code></td><td>{}</td></tr>\n", text_(name), constant_values(name));
      } else if (++num_charts <= kMaxOtherCharts) {
        figure(text_(name), "", lines, captions, kOtherPoints);
      }
    }
    page_ += "</div>\n";
    if (!constants.empty())
      page_ += fmt::format("<h3>Those that never change</h3><div class=\"scroll\"><table>{}</table></div>", constants);
    page_ += "</details>\n";
    const size_t num_hidden =
        names.size() - std::min(num_charts, kMaxOtherCharts) - std::min(num_constants, kMaxConstants);
    if (num_hidden > 0)
      notes_.push_back(
          fmt::format("Of the metrics, {} are left out: the page shows the first {} that change and the "
                      "first {} that do not, by name, besides those with charts of their own.",
                      num_hidden, kMaxOtherCharts, kMaxConstants));
  }

  std::string constant_values(const std::string& name) const {
    std::vector<std::string> parts;
    for (size_t i = 0; i < runs_.size(); ++i) {
      if (const Curve* const curve = find_curve(*runs_[i], name); curve != nullptr)
        parts.push_back(tag(i) + number_text(curve->values.front(), 6));
    }
    return joined(parts, "<br>");
  }

  void left_out() {
    std::string items;
    for (size_t i = 0; i < runs_.size(); ++i) {
      for (const std::string& note : runs_[i]->left_out) {
        items += fmt::format("<li>{}{}</li>\n", is_pair() ? name_of(i) + ": " : "", text_(note));
      }
    }
    for (const std::string& note : notes_) items += fmt::format("<li>{}</li>\n", note);
    const bool has_long = std::ranges::any_of(runs_, [&](const RunFiles* run) {
      return std::ranges::any_of(run->curves,
                                 [](const auto& named) { return named.second.values.size() > kOtherPoints; });
    });
    if (has_long)
      items += fmt::format(
          "<li>A curve is drawn with {} points at most ({} under \"Everything else\"): of a longer one, "
          "the least and the greatest of each stretch. The numbers below a chart are of all "
          "values.</li>\n",
          kMainPoints, kOtherPoints);
    page_ += "<h2>What this page leaves out</h2>\n";
    page_ += items.empty() ? "<p>Nothing of the run's records and samples.</p>\n" : "<ul>\n" + items + "</ul>\n";
    page_ +=
        "<p class=\"faint\">The files themselves have everything: metrics.jsonl, samples/, "
        "memory_timeline.jsonl, log.txt.</p>\n";
  }

  std::vector<const RunFiles*> runs_;
  PageText text_;
  AxisRanges ranges_ = {};
  std::string rollouts_title_;
  bool has_equal_names_ = false;
  std::string page_;
  std::set<std::string> shown_;  // metrics with a place on the page
  std::vector<std::string> notes_;
};

}  // namespace

std::string run_page(const RunFiles& run, const RunFiles* other) { return PageWriter(run, other).page(); }

}  // namespace tandem::report
