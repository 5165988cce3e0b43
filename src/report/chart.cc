#include "report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "report/report.h"
#include "report/terminal.h"

namespace tandem::report {

namespace {

// These are sizes of the drawing, in its own units; the page scales it.
constexpr double kWidth = 560, kHeight = 230, kLeft = 64, kRight = 14, kTop = 10, kBottom = 36;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();

  void take(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Adds room around the range; also to an empty one, or one of a single value.
  Range padded() const {
    if (low > high) return {0.0, 1.0};
    // It halves each number, since the difference of two may overflow.
    const double half = high / 2 - low / 2;
    const double room = half > 0 ? half / 10 : high != 0 ? std::abs(high) / 10 : 1.0;
    return {std::max(low - room, -1e300), std::min(high + room, 1e300)};
  }
};

// Maps values to coordinates. A tenth of a unit is exact to a thousandth of the chart.
struct Scale {
  Range y;
  AxisRange x;

  double x_of(double value) const {
    const double length = x.end - x.begin;
    return kLeft + (length > 0 ? (value - x.begin) / length : 0.5) * kPlotWidth;
  }
  double y_of(double value) const {
    return kTop + (1.0 - (value / 2 - y.low / 2) / (y.high / 2 - y.low / 2)) * kPlotHeight;
  }
};

// Returns the indices of a curve's drawn values, in order.
std::vector<size_t> thinned(const std::vector<double>& values, size_t max_points) {
  std::vector<size_t> kept;
  if (values.size() <= max_points) {
    for (size_t i = 0; i < values.size(); ++i) kept.push_back(i);
    return kept;
  }
  const size_t num_stretches = std::max<size_t>(1, max_points / 2);
  for (size_t stretch = 0; stretch < num_stretches; ++stretch) {
    const size_t begin = stretch * values.size() / num_stretches, end = (stretch + 1) * values.size() / num_stretches;
    size_t least = begin, greatest = begin;
    for (size_t i = begin; i < end; ++i) {
      // A NaN gives way to any number.
      if (values[i] < values[least] || std::isnan(values[least])) least = i;
      if (values[i] > values[greatest] || std::isnan(values[greatest])) greatest = i;
    }
    kept.push_back(std::min(least, greatest));
    if (least != greatest) kept.push_back(std::max(least, greatest));
  }
  return kept;
}

std::string mark_path(int mark, double x, double y) {
  switch (mark % 4) {
    case 0: return fmt::format("M{:.1f} {:.1f}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", x - 4, y);
    case 1: return fmt::format("M{:.1f} {:.1f}h7v7h-7z", x - 3.5, y - 3.5);
    case 2: return fmt::format("M{:.1f} {:.1f}l4.5 8h-9z", x, y - 5);
    default: return fmt::format("M{:.1f} {:.1f}l4.5 4.5l-4.5 4.5l-4.5 -4.5z", x, y - 4.5);
  }
}

// Holds a curve's drawing: its path, and its points that have a gap on both sides, which a path does not show.
struct Drawn {
  std::string path, lone;
};

Drawn drawn(const ChartLine& line, const std::vector<double>& values, const std::vector<size_t>& kept, Axis axis,
            const Scale& scale) {
  Drawn drawn;
  size_t run_length = 0;  // points since the last gap
  double x = 0, y = 0;
  const auto end_run = [&] {
    if (run_length == 1) drawn.lone += mark_path(0, x, y);
    run_length = 0;
  };
  for (const size_t i : kept) {
    const double value = values[i];
    if (!std::isfinite(value)) {
      end_run();
      continue;
    }
    x = scale.x_of(at_axis((*line.positions)[line.curve->at[i]], axis));
    y = scale.y_of(value);
    drawn.path += fmt::format("{}{:.1f} {:.1f}", run_length == 0 ? "M" : "L", x, y);
    ++run_length;
  }
  end_run();
  return drawn;
}

std::vector<double> time_ticks(double begin, double end) {
  constexpr std::array<double, 17> kSteps = {1,   2,   5,    10,   15,   30,    60,    120,  300,
                                             600, 900, 1800, 3600, 7200, 14400, 21600, 43200};
  const double wanted = (end - begin) / 5;
  if (wanted < kSteps.front()) return {};
  if (wanted > kSteps.back()) return ticks(begin, end, 4, 86400);
  const double step = *std::lower_bound(kSteps.begin(), kSteps.end(), wanted);
  std::vector<double> result;
  for (double at = std::ceil(begin / step) * step; at <= end; at += step) result.push_back(at);
  return result;
}

std::string axis_marks(Axis axis, const Scale& scale, const std::string& rollouts_title) {
  const auto [begin, end] = scale.x;
  std::vector<double> at;
  switch (axis) {
    case Axis::kRollouts: at = ticks(begin, end, 5, 1.0); break;
    case Axis::kTime: at = time_ticks(begin, end); break;
    case Axis::kTokens: at = ticks(begin, end, 4, 1.0); break;
  }
  const std::string title = axis == Axis::kRollouts ? rollouts_title : axis == Axis::kTime ? "time" : "tokens";
  std::string svg;
  for (const double tick : at) {
    const double x = scale.x_of(tick);
    svg += fmt::format(
        "<path class=\"tick\" d=\"M{0:.1f} {1:.1f}v4\"/><text x=\"{0:.1f}\" y=\"{2:.1f}\" "
        "class=\"under\">{3}</text>",
        x, kTop + kPlotHeight, kTop + kPlotHeight + 16, axis == Axis::kTime ? clock_text(tick) : short_number(tick));
  }
  return svg +
         fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"end\">{}</text>", kWidth - kRight, kHeight - 4, title);
}

std::string y_marks(const Scale& scale) {
  std::string svg;
  for (const double tick : ticks(scale.y.low, scale.y.high, 6)) {
    const double y = scale.y_of(tick);
    svg += fmt::format(
        "<path class=\"grid\" d=\"M{:.1f} {:.1f}h{:.1f}\"/><text x=\"{:.1f}\" y=\"{:.1f}\" "
        "class=\"end\">{}</text>",
        kLeft, y, kPlotWidth, kLeft - 6, y + 4, short_number(tick));
  }
  return svg;
}

// Returns the class of what is drawn over an axis; the page's style shows one of them.
const char* css_class(Axis axis) {
  switch (axis) {
    case Axis::kRollouts: return "by-rollouts";
    case Axis::kTime: return "by-time";
    case Axis::kTokens: return "by-tokens";
  }
  return "";
}

}  // namespace

double at_axis(const Position& position, Axis axis) {
  switch (axis) {
    case Axis::kRollouts: return position.rollouts;
    case Axis::kTime: return position.seconds;
    case Axis::kTokens: return position.tokens;
  }
  return 0.0;
}

std::string short_number(double value) {
  constexpr double kThousand = 1e3, kMillion = 1e6, kBillion = 1e9, kTooLarge = 1e12;
  const double size = std::abs(value);
  if (size >= kTooLarge || size < kThousand) return number_text(value, 4);
  if (size >= kBillion) return fmt::format("{:.4g}G", value / kBillion);
  if (size >= kMillion) return fmt::format("{:.4g}M", value / kMillion);
  return fmt::format("{:.4g}k", value / kThousand);
}

std::vector<double> ticks(double begin, double end, int count, double least) {
  const double wanted = (end / count - begin / count);
  std::vector<double> result;
  if (!(wanted > 0) || !std::isfinite(wanted)) return result;
  const double power = std::pow(10.0, std::floor(std::log10(wanted)));
  if (!(power > 0)) return result;
  double step = power;
  for (const double factor : {10.0, 5.0, 2.0}) {
    if (wanted <= factor * power) step = factor * power;
  }
  step = std::max(step, least);
  // The loop counts multiples: near the limit of a double, adding a step may change nothing.
  const double first = std::ceil(begin / step);
  for (int i = 0; i <= 2 * count + 1; ++i) {
    const double tick = (first + i) * step;
    if (!(tick <= end)) break;
    if (tick < begin) continue;  // by rounding, in a range of a few units in the last place
    result.push_back(std::abs(tick) < step / 2 ? 0.0 : tick);
  }
  return result;
}

std::vector<double> smoothed(const std::vector<double>& values) {
  constexpr double kShare = 40;
  if (values.size() < kLeastSmoothed) return {};
  const double keep = 1.0 - kShare / static_cast<double>(values.size());  // weight of the mean so far
  std::vector<double> result;
  double mean = 0.0, weight = 0.0;
  for (const double value : values) {
    if (!std::isfinite(value)) {
      result.push_back(value);
      continue;
    }
    mean = keep * mean + (1.0 - keep) * value;
    weight = keep * weight + (1.0 - keep);
    result.push_back(mean / weight);
  }
  return result;
}

std::string line_chart(const std::string& label, std::span<const ChartLine> lines, const AxisRanges& ranges,
                       const std::string& rollouts_title, size_t max_points) {
  Range y;
  for (const ChartLine& line : lines) {
    for (const double value : line.curve->values) y.take(value);
  }
  Scale scale{.y = y.padded(), .x = {}};
  std::string svg = fmt::format(
      "<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" data-top=\"{}\" data-bottom=\"{}\" "
      "data-low=\"{}\" data-high=\"{}\" data-left=\"{}\" data-right=\"{}\">",
      kWidth, kHeight, label, kTop, kTop + kPlotHeight, scale.y.low, scale.y.high, kLeft, kLeft + kPlotWidth);
  svg += y_marks(scale);
  svg += fmt::format("<path class=\"frame\" d=\"M{} {}v{}h{}\"/>", kLeft, kTop, kPlotHeight, kPlotWidth);
  std::vector<std::vector<size_t>> kept;
  std::vector<std::vector<double>> smooth;  // smoothed values of a line without marks; empty: not smoothed
  for (const ChartLine& line : lines) {
    kept.push_back(thinned(line.curve->values, max_points));
    smooth.push_back(line.mark < 0 ? smoothed(line.curve->values) : std::vector<double>());
  }
  for (const Axis axis : kAxes) {
    scale.x = ranges[static_cast<size_t>(axis)];
    svg += fmt::format("<g class=\"{}\" data-axis=\"{}\" data-begin=\"{}\" data-end=\"{}\">", css_class(axis),
                       axis == Axis::kRollouts ? rollouts_title
                       : axis == Axis::kTime   ? "time"
                                               : "tokens",
                       scale.x.begin, scale.x.end);
    svg += axis_marks(axis, scale, rollouts_title);
    for (size_t i = 0; i < lines.size(); ++i) {
      const ChartLine& line = lines[i];
      const auto [path, lone] = drawn(line, line.curve->values, kept[i], axis, scale);
      const char* const kind = line.mark >= 0 ? " joins" : smooth[i].empty() ? "" : " rough";
      svg +=
          fmt::format("<path class=\"line run-{}{}\" data-label=\"{}\" d=\"{}\"/>", line.run, kind, line.label, path);
      if (!smooth[i].empty())
        svg += fmt::format("<path class=\"smooth run-{}\" d=\"{}\"/>", line.run,
                           drawn(line, smooth[i], kept[i], axis, scale).path);
      if (line.mark < 0) {
        if (!lone.empty()) svg += fmt::format("<path class=\"mark run-{}\" d=\"{}\"/>", line.run, lone);
        continue;
      }
      std::string marks;
      for (const size_t at : kept[i]) {
        if (std::isfinite(line.curve->values[at]))
          marks += mark_path(line.mark, scale.x_of(at_axis((*line.positions)[line.curve->at[at]], axis)),
                             scale.y_of(line.curve->values[at]));
      }
      svg += fmt::format("<path class=\"mark run-{}\" d=\"{}\"/>", line.run, marks);
    }
    svg += "</g>";
  }
  return svg + "</svg>";
}

std::string mark_svg(int mark, int run) {
  return fmt::format(
      "<svg class=\"key\" viewBox=\"0 0 12 12\" aria-hidden=\"true\"><path class=\"mark run-{}\" "
      "d=\"{}\"/></svg>",
      run, mark_path(mark, 6, 6));
}

std::string bar_chart(const std::string& label, std::span<const std::vector<double>> seconds, double max_seconds,
                      double first_rollout, double last_rollout) {
  const Scale scale{.y = {0.0, max_seconds > 0 ? max_seconds : 1.0}, .x = {first_rollout, last_rollout}};
  std::string svg =
      fmt::format("<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">", kWidth, kHeight, label);
  svg += y_marks(scale) + axis_marks(Axis::kRollouts, scale, "rollouts");
  const size_t num_bars = seconds.empty() ? 0 : seconds.front().size();
  const double width = kPlotWidth / static_cast<double>(std::max<size_t>(1, num_bars));
  for (size_t bar = 0; bar < num_bars; ++bar) {
    double below = 0.0;
    for (size_t phase = 0; phase < seconds.size(); ++phase) {
      const double value = seconds[phase][bar];
      if (!(value > 0)) continue;
      const double top = scale.y_of(below + value), bottom = scale.y_of(below);
      svg += fmt::format("<rect class=\"phase-{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\"/>",
                         phase, kLeft + width * static_cast<double>(bar) + width / 10, top, width * 0.8, bottom - top);
      below += value;
    }
  }
  return svg + fmt::format("<path class=\"frame\" d=\"M{} {}v{}h{}\"/></svg>", kLeft, kTop, kPlotHeight, kPlotWidth);
}

}  // namespace tandem::report
