// The run or the two runs that a page of `tandem view` shows: what they are called on it, and the axes they share.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "report/chart.h"
#include "report/page_text.h"
#include "report/run_files.h"

namespace tandem::report {

class PageRuns {
 public:
  // Both are borrowed; `other` may be null.
  PageRuns(const RunFiles& run, const RunFiles* other);

  size_t size() const { return runs_.size(); }
  bool is_pair() const { return size() == 2; }
  const RunFiles& operator[](size_t run) const { return *runs_[run]; }
  const std::vector<const RunFiles*>& all() const { return runs_; }

  // HTML. The name of a run is that of its folder; of two with the same name, the path.
  std::string name_of(size_t run) const;
  // A short stroke as the run's curves are drawn: solid or dashed.
  static std::string stroke(size_t run);
  // What stands above that which is told of one run of two; nothing for a run alone.
  std::string heading(size_t run) const;
  // What stands in a line before that which is told of one run of two: its stroke and its name.
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
  bool has_equal_names_ = false;
};

// Null where the run has no such metric.
const Curve* find_curve(const RunFiles& run, const std::string& name);

}  // namespace tandem::report
