// Holds the runs that a page of `tandem view` shows, with their names on it and the axes they share.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "report/chart.h"
#include "report/page_text.h"
#include "report/run_files.h"

namespace tandem::report {

class PageRuns {
 public:
  // `runs` holds at least one run and is borrowed.
  explicit PageRuns(std::span<const RunFiles> runs);

  size_t size() const { return runs_.size(); }
  bool are_several() const { return size() > 1; }
  const RunFiles& operator[](size_t run) const { return *runs_[run]; }
  const std::vector<const RunFiles*>& all() const { return runs_; }

  // Returns HTML: the name of the run's folder, or the path if several have the same name.
  std::string name_of(size_t run) const;
  // Returns a short stroke in the colour and the dashes of the run's curves.
  static std::string stroke(size_t run);
  // Returns a heading for the part of one run among several; empty if the run is alone.
  std::string heading(size_t run) const;
  // Returns the stroke and the name of a run, on a line before the part of one run among several.
  std::string tag(size_t run) const;

  // Escapes any text of the files.
  const PageText& text() const { return text_; }
  const AxisRanges& ranges() const { return ranges_; }
  // Returns "rollouts"; for supervised runs "steps".
  const std::string& rollouts_title() const { return rollouts_title_; }

 private:
  std::vector<const RunFiles*> runs_;
  PageText text_;
  AxisRanges ranges_ = {};
  std::string rollouts_title_;
};

// Returns null if the run has no such metric.
const Curve* find_curve(const RunFiles& run, const std::string& name);

}  // namespace tandem::report
