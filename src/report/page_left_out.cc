// Writes the end of a page of `tandem view`, which lists what the page leaves out.
#include <fmt/format.h>

#include <algorithm>

#include "report/page_parts.h"

namespace tandem::report {

std::string left_out_part(const PageRuns& runs, const PageNotes& notes) {
  std::string items;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const std::string& note : runs[i].left_out) {
      items += fmt::format("<li>{}{}</li>\n", runs.are_several() ? runs.name_of(i) + ": " : "", runs.text()(note));
    }
  }
  for (const std::string& note : notes.left_out) items += fmt::format("<li>{}</li>\n", note);
  const bool has_long = std::ranges::any_of(runs.all(), [&](const RunFiles* run) {
    return std::ranges::any_of(run->curves,
                               [](const auto& named) { return named.second.values.size() > kOtherPoints; });
  });
  if (has_long)
    items += fmt::format(
        "<li>A curve is drawn with {} points at most ({} under \"Everything else\"): of a longer one, "
        "the least and the greatest of each stretch. The numbers below a chart are of all "
        "values.</li>\n",
        kMainPoints, kOtherPoints);
  std::string html = "<h2>What this page leaves out</h2>\n";
  html += items.empty() ? "<p>Nothing of the run's records and samples.</p>\n" : "<ul>\n" + items + "</ul>\n";
  return html +
         "<p class=\"faint\">The files themselves have everything: metrics.jsonl, samples/, "
         "memory_timeline.jsonl, log.txt.</p>\n"
         "<p class=\"faint on-paper\">Of what was folded on the screen, paper has the title alone.</p>\n";
}

}  // namespace tandem::report
