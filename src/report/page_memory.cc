// Shows the memory of a run on a page of `tandem view`: the bytes of each phase, compared with the plan.
#include <fmt/format.h>

#include <algorithm>

#include "report/page_parts.h"

namespace tandem::report {

namespace {

constexpr double kGiB = 1 << 30, kMiB = 1 << 20;

std::string bytes_text(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  return value >= kGiB ? fmt::format("{:.2f} GiB", value / kGiB) : fmt::format("{:.1f} MiB", value / kMiB);
}

}  // namespace

std::string memory_part(const PageRuns& runs) {
  if (std::ranges::all_of(runs.all(), [](const RunFiles* run) { return run->memory.empty(); })) return "";
  std::string html =
      "<h2>Memory</h2>\n<p class=\"faint\">The most that was taken on the device so far, beside what the plan had "
      "stated. The frame is the plan, the filled part what was measured.</p>\n<div class=\"halves\">\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    int64_t most = 1;
    for (const MemoryUse& use : runs[i].memory) most = std::max({most, use.measured_bytes, use.planned_bytes});
    if (runs[i].memory.empty()) continue;
    html += fmt::format(
        "<div class=\"scroll\">{}<table><thead><tr><th>phase</th><th>for</th><th class=\"number\">measured"
        "</th><th class=\"number\">planned</th><th></th></tr></thead>\n",
        runs.heading(i));
    for (const MemoryUse& use : runs[i].memory) {
      const auto width = [&](int64_t bytes) { return 148.0 * static_cast<double>(bytes) / static_cast<double>(most); };
      html += fmt::format(
          "<tr{}><td>{}</td><td>{}</td><td class=\"number{}\">{}</td><td class=\"number\">{}</td><td><svg "
          "class=\"bar\" viewBox=\"0 0 150 12\" aria-hidden=\"true\"><rect class=\"measured\" x=\"1\" y=\"2\" "
          "width=\"{:.1f}\" height=\"8\"/><rect class=\"planned\" x=\"1\" y=\"1\" width=\"{:.1f}\" height=\"10\"/>"
          "</svg></td></tr>\n",
          use.tag.empty() ? " class=\"sum\"" : "", runs.text()(use.phase),
          use.tag.empty() ? "all at once" : runs.text()(use.tag), use.measured_bytes > use.planned_bytes ? " warn" : "",
          bytes_text(use.measured_bytes), bytes_text(use.planned_bytes), width(use.measured_bytes),
          width(use.planned_bytes));
    }
    html += "</table></div>\n";
  }
  return html + "</div>\n";
}

}  // namespace tandem::report
