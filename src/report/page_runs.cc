#include "report/page_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tandem::report {

namespace {

std::string last_folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos || slash + 1 == path.size() ? path : path.substr(slash + 1);
}

}  // namespace

PageRuns::PageRuns(std::span<const RunFiles> runs) {
  for (const RunFiles& run : runs) runs_.push_back(&run);
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
    // The axis begins where the first rollout began: a run may have resumed from another one's checkpoint.
    range.begin = axis == Axis::kRollouts ? std::max(0.0, std::ceil(range.begin) - 1) : 0.0;
  }
}

std::string PageRuns::name_of(size_t run) const {
  const std::string name = last_folder(runs_[run]->path);
  const auto has_name = [&](const RunFiles* each) { return last_folder(each->path) == name; };
  return std::ranges::count_if(runs_, has_name) > 1 ? text_.path(runs_[run]->path) : text_(name);
}

std::string PageRuns::stroke(size_t run) {
  return fmt::format(
      "<svg class=\"key\" viewBox=\"0 0 24 12\" aria-hidden=\"true\"><path class=\"line run-{}\" "
      "d=\"M1 6L23 6\"/></svg>",
      run);
}

std::string PageRuns::heading(size_t run) const {
  return are_several() ? fmt::format("<h3>{} {}</h3>", stroke(run), name_of(run)) : "";
}

std::string PageRuns::tag(size_t run) const {
  return are_several() ? fmt::format("{} {}: ", stroke(run), name_of(run)) : "";
}

const Curve* find_curve(const RunFiles& run, const std::string& name) {
  const auto found = run.curves.find(name);
  return found == run.curves.end() ? nullptr : &found->second;
}

}  // namespace tandem::report
