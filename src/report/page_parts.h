// Makes the parts of a page of `tandem view`, each the HTML of one section; a part is empty if the runs have no data
// for it.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "report/page_runs.h"

namespace tandem::report {

// Holds the notes that a part leaves for the parts after it.
struct PageNotes {
  std::set<std::string> shown_metrics;  // metrics with a place on the page
  std::vector<std::string> left_out;    // whole sentences, HTML, about data that the page has no room for
};

// A curve has at most so many points, in a chart of its own and under "Everything else".
constexpr size_t kMainPoints = 600, kOtherPoints = 120;

// Returns the first line of the file to the beginning of <main>: style, title, state of the runs, buttons of the axes.
std::string page_head(const PageRuns& runs);
std::string curves_part(const PageRuns& runs, PageNotes& notes);
std::string faults_part(const PageRuns& runs, PageNotes& notes);
std::string times_part(const PageRuns& runs);
std::string memory_part(const PageRuns& runs);
std::string samples_part(const PageRuns& runs);
std::string options_part(const PageRuns& runs);
std::string log_part(const PageRuns& runs);
// Shows the metrics that no part before it has shown.
std::string other_metrics_part(const PageRuns& runs, PageNotes& notes);
// Lists everything that files and parts have left out.
std::string left_out_part(const PageRuns& runs, const PageNotes& notes);

}  // namespace tandem::report
