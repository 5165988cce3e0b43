// The runs of a page have names that tell them apart, and share their axes.
#include "report/page_runs.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace tandem::report {
namespace {

RunFiles run_at(const std::string& path, bool has_rollouts = true) {
  RunFiles run;
  run.path = path;
  run.has_rollouts = has_rollouts;
  return run;
}

TEST(PageRuns, AreNamedByTheirFolderUnlessAnotherHasIt) {
  const std::vector<RunFiles> runs = {run_at("/data/a/run"), run_at("/data/b/run"), run_at("/data/<c>"), run_at("d/")};
  const PageRuns page(runs);
  EXPECT_EQ(page.name_of(0), "/data/a/run");
  EXPECT_EQ(page.name_of(1), "/data/b/run");
  EXPECT_EQ(page.name_of(2), "&lt;c&gt;");
  EXPECT_EQ(page.name_of(3), "d/");
  EXPECT_NE(page.heading(2).find("&lt;c&gt;"), std::string::npos);
  EXPECT_NE(PageRuns::stroke(0), PageRuns::stroke(1));
}

TEST(PageRuns, ARunAloneNeedsNoHeading) {
  const std::vector<RunFiles> runs = {run_at("run")};
  const PageRuns page(runs);
  EXPECT_FALSE(page.are_several());
  EXPECT_EQ(page.heading(0), "");
  EXPECT_EQ(page.tag(0), "");
}

TEST(PageRuns, CountInStepsWhereNoneHasRollouts) {
  const std::vector<RunFiles> supervised = {run_at("a", false), run_at("b", false)};
  EXPECT_EQ(PageRuns(supervised).rollouts_title(), "steps");
  const std::vector<RunFiles> mixed = {run_at("a", false), run_at("b", true)};
  EXPECT_EQ(PageRuns(mixed).rollouts_title(), "rollouts");
}

// A run that resumed from another one's checkpoint begins where that ended.
TEST(PageRuns, AxesHoldEveryRunAndBeginWithTheFirstRollout) {
  std::vector<RunFiles> runs = {run_at("a"), run_at("b")};
  runs[0].positions = {{.rollouts = 11, .seconds = 2, .tokens = 44}, {.rollouts = 20, .seconds = 60, .tokens = 80}};
  runs[1].positions = {{.rollouts = 12, .seconds = 1, .tokens = 48}, {.rollouts = 30, .seconds = 50, .tokens = 90}};
  const AxisRanges ranges = PageRuns(runs).ranges();
  const AxisRange rollouts = ranges[static_cast<size_t>(Axis::kRollouts)];
  EXPECT_EQ(rollouts.begin, 10);
  EXPECT_EQ(rollouts.end, 30);
  const AxisRange time = ranges[static_cast<size_t>(Axis::kTime)];
  EXPECT_EQ(time.begin, 0);
  EXPECT_EQ(time.end, 60);
}

}  // namespace
}  // namespace tandem::report
