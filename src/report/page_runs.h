// The runs that a page of `tandem view` shows: what they are called on it, and the axes they share.
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
  // One run or more, borrowed.
  explicit PageRuns(std::span<const RunFiles> runs);

  size_t size() const { return runs_.size(); }
  bool are_several() const { return size() > 1; }
  const RunFiles& operator[](size_t run) const { return *runs_[run]; }
  const std::vector<const RunFiles*>& all() const { return runs_; }

  // HTML. The name of a run is that of its folder; of several with the same name, the path.
  std::string name_of(size_t run) const;
  // A short stroke in the colour and the dashes of the run's curves.
  static std::string stroke(size_t run);
  // A heading above what is told of one run of several; nothing for a run alone.
  std::string heading(size_t run) const;
  // The stroke and the name of a run, in a line before what is told of one run of several.
  std::string tag(size_t run) const;

  // For what the files say, whatever it is.
  const PageText& text() const { return text_; }
  const AxisRanges& ranges() const { return ranges_; }
  // "rollouts"; of supervised runs "steps".
  const std::string& rollouts_title() const { return rollouts_title_; }

 private:
  std::vector<const RunFiles*> runs_;
  PageText text_;
  AxisRanges ranges_ = {};
  std::string rollouts_title_;
};

// Null where the run has no such metric.
const Curve* find_curve(const RunFiles& run, const std::string& name);

}  // namespace tandem::report
