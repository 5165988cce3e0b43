// Draws charts as SVG that needs no script: curves over three axes, of which the page's style shows one.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "report/run_files.h"

namespace tandem::report {

// The axes are in the order in which the page offers them.
enum class Axis : uint8_t { kRollouts, kTime, kTokens };
constexpr std::array<Axis, 3> kAxes = {Axis::kRollouts, Axis::kTime, Axis::kTokens};
double at_axis(const Position& position, Axis axis);

struct AxisRange {
  double begin = 0.0, end = 1.0;
};
using AxisRanges = std::array<AxisRange, kAxes.size()>;

// Describes one curve to draw. Both pointers are borrowed for the call.
struct ChartLine {
  std::string label;  // HTML, made by PageText
  int run = 0;        // index among the page's runs, which chooses colour and dashes
  int mark = -1;      // 0 to 3: mark of each point, for evaluations; -1: a line alone
  const Curve* curve = nullptr;
  const std::vector<Position>* positions = nullptr;
};

// Returns the values without their short waves: the exponential moving average of as many values as make a fortieth of
// the curve, without its bias towards 0 at the beginning (the smoothing of TensorBoard's scalars). A value that is not
// finite stays and counts for nothing. A curve of fewer than kLeastSmoothed values has none.
constexpr size_t kLeastSmoothed = 80;
std::vector<double> smoothed(const std::vector<double>& values);

// Draws at most `max_points` of a line: of longer ones the least and the greatest of each part stay. A value that is
// not finite leaves a gap. `label` is HTML, for readers who hear the page.
std::string line_chart(const std::string& label, std::span<const ChartLine> lines, const AxisRanges& ranges,
                       const std::string& rollouts_title, size_t max_points);

// Returns the mark of an evaluation alone, for a legend.
std::string mark_svg(int mark, int run);

// Draws mean seconds by phase: one bar for each range of rollouts. `seconds` is indexed [phase][bar]; `titles` are
// those of the bars.
std::string bar_chart(const std::string& label, std::span<const std::vector<double>> seconds, double max_seconds,
                      double first_rollout, double last_rollout);

// Returns "1.2M", "34.5k", "0.031".
std::string short_number(double value);

// Returns the labelled places of an axis from `begin` to `end`: multiples of 1, 2 or 5 times a power of ten that is
// `least` or more, about `count` of them.
std::vector<double> ticks(double begin, double end, int count, double least = 0.0);

}  // namespace tandem::report
