// Shows the faults of a run on a page of `tandem view`: every count that is not 0.
#include <fmt/format.h>

#include "base/message_text.h"
#include "report/page_parts.h"
#include "report/report.h"

namespace tandem::report {

namespace {

constexpr size_t kMaxFaults = 60;

// Returns whether a metric counts faults.
bool is_fault(const std::string& name) {
  return (name.starts_with("fault/") && name != "fault/skipped_steps") || name == "train/step_skipped" ||
         name.ends_with("/grader_failed") || name.find("/grader_failed/") != std::string::npos ||
         name.ends_with("/dropped");
}

}  // namespace

std::string faults_part(const PageRuns& runs, PageNotes& notes) {
  std::string html = "<h2>What went wrong</h2>\n";
  std::string rows;
  size_t num_rows = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const auto& [name, curve] : runs[i].curves) {
      if (!is_fault(name)) continue;
      notes.shown_metrics.insert(name);
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
          runs.tag(i), runs.text()(name), base::with_commas(count), base::with_commas(std::ssize(curve.values)),
          number_text(greatest, 4), number_text(runs[i].positions[last].rollouts, 6));
    }
  }
  if (rows.empty()) {
    return html + "<p>Nothing that is counted: no failed grading, no skipped step, no write that was refused.</p>\n";
  }
  if (num_rows > kMaxFaults)
    notes.left_out.push_back(fmt::format("{} more counts of what went wrong are left out.", num_rows - kMaxFaults));
  html += fmt::format(
      "<div class=\"scroll\"><table><thead><tr><th>count</th><th class=\"number\">records with it</th>"
      "<th class=\"number\">most in one</th><th class=\"number\">last after {}</th></tr></thead>\n{}"
      "</table></div>\n",
      runs.rollouts_title(), rows);
  return html;
}

}  // namespace tandem::report
