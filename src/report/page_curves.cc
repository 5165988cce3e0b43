// Draws the curves on a page of `tandem view`: the main ones with charts of their own, and all others after them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "base/message_text.h"
#include "report/page_parts.h"
#include "report/report.h"

namespace tandem::report {

namespace {

constexpr size_t kMaxOtherCharts = 300, kMaxConstants = 500;

// Describes a chart of its own, which shows the first of these metrics that a run has.
struct Panel {
  const char* title;
  const char* says;
  std::vector<const char*> metrics;
  const char* eval_end = nullptr;  // the metric's name after "eval/NAME" in evaluations; null: it is in none
};
const std::vector<Panel>& panels() {
  static const std::vector<Panel> kPanels = {
      {"Reward", "mean over the samples of a rollout", {"rollout/raw_reward"}, ""},
      {"Response length", "mean, in tokens", {"rollout/response_len/mean"}},
      {"Truncated responses", "share of the samples", {"rollout/truncated_ratio"}},
      {"Entropy", "of the policy, per token", {"train/entropy", "train/entropy_loss"}},
      {"KL divergence", "from the reference, per token", {"train/kl", "train/kl_loss"}},
      {"Gradient norm", "before clipping", {"train/grad_norm"}},
      {"Loss", "", {"train/loss"}, "/loss"},
      {"Preference accuracy",
       "share of the pairs whose chosen answer has the higher reward",
       {"preference/accuracy"},
       "/accuracy"},
      {"Preference margin", "reward of chosen answers minus that of rejected ones", {"preference/margin"}, "/margin"},
      {"Reward of chosen answers", "or of desirable ones", {"preference/chosen_reward"}, "/chosen_reward"},
      {"Reward of rejected answers", "or of undesirable ones", {"preference/rejected_reward"}, "/rejected_reward"},
      {"Clipped tokens", "share whose ratio was clipped", {"train/pg_clipfrac"}},
      {"Trainer against sampler",
       "mean difference of the log-probs of a token",
       {"train/train_rollout_logprob_abs_diff"}},
      {"Age of the samples", "changes of the weights since the oldest token of a group", {"rollout/staleness/mean"}},
      {"Groups without a signal", "all their advantages are 0", {"rollout/groups_without_signal"}},
      {"Learning rate", "", {"train/lr-pg_0"}},
      {"Speed", "tokens per second", {"perf/tokens_per_gpu_per_sec", "perf/actor_train_tok_per_s"}},
  };
  return kPanels;
}

// Returns the data sets that a run evaluates: "held_out" if there are eval/held_out and
// eval/held_out/response_len/mean.
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

// Returns the data sets of a supervised run's evaluations: NAME for each metric "eval/NAME" + `end`.
std::vector<std::string> evaluated_with(const RunFiles& run, std::string_view end) {
  constexpr std::string_view kBegin = "eval/";
  std::vector<std::string> names;
  for (const auto& [name, curve] : run.curves) {
    if (name.starts_with(kBegin) && name.ends_with(end) && name.size() > kBegin.size() + end.size())
      names.push_back(name.substr(kBegin.size(), name.size() - kBegin.size() - end.size()));
  }
  return names;
}

// Finds the least, the greatest and the last finite value.
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

// Makes a chart with the lines of text below it.
class Figure {
 public:
  explicit Figure(const PageRuns& runs) : runs_(runs) {}

  // Adds the metric's curve of this run and returns true, if it has one. `label` names the curve among the others of
  // the chart; "" means that it is the chart's own.
  bool add(size_t run, const std::string& metric, const std::string& label = "", int mark = -1) {
    const Curve* const curve = find_curve(runs_[run], metric);
    if (curve == nullptr) return false;
    const std::string name = label.empty() ? "" : runs_.text()(label);
    const std::string in_run = runs_.are_several() ? runs_.name_of(run) : "";
    std::string read = name.empty() ? in_run : in_run.empty() ? name : name + ", " + in_run;
    if (read.empty()) read = "value";
    lines_.push_back({.label = read,
                      .run = static_cast<int>(run),
                      .mark = mark,
                      .curve = curve,
                      .positions = &runs_[run].positions});
    captions_.push_back(fmt::format("{}{}{}", mark < 0 ? runs_.tag(run) : mark_svg(mark, static_cast<int>(run)) + " ",
                                    mark < 0 ? "" : read + ": ", Extremes(*curve).text()));
    return true;
  }

  // `caption` is HTML.
  void add_caption(std::string caption) { captions_.push_back(std::move(caption)); }
  bool is_empty() const { return lines_.empty(); }

  // `title` is HTML.
  std::string html(const std::string& title, const std::string& says, size_t max_points) const {
    return fmt::format("<figure class=\"line-chart\"><h3>{}{}</h3>\n", title,
                       says.empty() ? "" : " <span class=\"faint\">" + says + "</span>") +
           line_chart(title, lines_, runs_.ranges(), runs_.rollouts_title(),
                      max_points / std::max<size_t>(1, runs_.size() / 2)) +
           fmt::format("<output></output><figcaption>{}</figcaption></figure>\n", fmt::join(captions_, "<br>"));
  }

 private:
  const PageRuns& runs_;
  std::vector<ChartLine> lines_;
  std::vector<std::string> captions_;
};

std::string constant_values(const PageRuns& runs, const std::string& name) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (const Curve* const curve = find_curve(runs[i], name); curve != nullptr)
      parts.push_back(runs.tag(i) + number_text(curve->values.front(), 6));
  }
  return fmt::format("{}", fmt::join(parts, "<br>"));
}

}  // namespace

std::string curves_part(const PageRuns& runs, PageNotes& notes) {
  std::string html = "<h2>Curves</h2>\n<div class=\"charts\">\n";
  for (const Panel& panel : panels()) {
    Figure figure(runs);
    std::set<std::string> metrics;
    for (size_t i = 0; i < runs.size(); ++i) {
      const auto metric = std::ranges::find_if(panel.metrics, [&](const char* name) { return figure.add(i, name); });
      if (metric != panel.metrics.end()) metrics.insert(*metric);
    }
    notes.shown_metrics.insert(metrics.begin(), metrics.end());
    // A user's function may have numbers of the same names in evaluations of rewards.
    const bool is_other_run = metrics.empty() && std::string_view(panel.metrics.front()).starts_with("preference/");
    for (size_t i = 0; i < runs.size() && panel.eval_end != nullptr && !is_other_run; ++i) {
      const std::string_view end = panel.eval_end;
      int mark = 0;
      for (const std::string& set : end.empty() ? evaluated(runs[i]) : evaluated_with(runs[i], end)) {
        const std::string metric = fmt::format("eval/{}{}", set, end);
        figure.add(i, metric, "evaluation " + set, mark++);
        notes.shown_metrics.insert(metric);
      }
    }
    if (figure.is_empty()) continue;
    figure.add_caption(fmt::format("<code>{}</code>", fmt::join(metrics, ", ")));
    html += figure.html(panel.title, panel.says, kMainPoints);
  }
  return html + "</div>\n";
}

std::string other_metrics_part(const PageRuns& runs, PageNotes& notes) {
  std::set<std::string> names;
  for (const RunFiles* run : runs.all()) {
    for (const auto& [name, curve] : run->curves) {
      if (!notes.shown_metrics.contains(name)) names.insert(name);
    }
  }
  if (names.empty()) return "";
  std::string constants;
  size_t num_charts = 0, num_constants = 0;
  std::string html =
      fmt::format("<h2>Everything else</h2>\n<details><summary>{} more</summary>\n<div class=\"charts\">\n",
                  base::counted(static_cast<int64_t>(names.size()), "metric"));
  for (const std::string& name : names) {
    Figure figure(runs);
    bool is_constant = true;
    for (size_t i = 0; i < runs.size(); ++i) {
      if (!figure.add(i, name)) continue;
      const Extremes extremes(*find_curve(runs[i], name));
      is_constant = is_constant && extremes.num_not_finite == 0 && extremes.lowest == extremes.highest;
    }
    if (is_constant) {
      if (++num_constants <= kMaxConstants)
        constants += fmt::format("<tr><td><code>{}</code></td><td>{}</td></tr>\n", runs.text()(name),
                                 constant_values(runs, name));
    } else if (++num_charts <= kMaxOtherCharts) {
      html += figure.html(runs.text()(name), "", kOtherPoints);
    }
  }
  html += "</div>\n";
  if (!constants.empty())
    html += fmt::format("<h3>Those that never change</h3><div class=\"scroll\"><table>{}</table></div>", constants);
  html += "</details>\n";
  const size_t num_hidden =
      names.size() - std::min(num_charts, kMaxOtherCharts) - std::min(num_constants, kMaxConstants);
  if (num_hidden > 0)
    notes.left_out.push_back(
        fmt::format("Of the metrics, {} are left out: the page shows the first {} that change and the "
                    "first {} that do not, by name, besides those with charts of their own.",
                    num_hidden, kMaxOtherCharts, kMaxConstants));
  return html;
}

}  // namespace tandem::report
