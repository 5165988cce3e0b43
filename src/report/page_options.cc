// Shows the options of a run and the end of its log on a page of `tandem view`; with several runs, the differences come
// first.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <vector>

#include "report/page_parts.h"

namespace tandem::report {

std::string options_part(const PageRuns& runs) {
  std::string html = "<h2>Options</h2>\n";
  if (runs.are_several()) {
    std::set<std::string> names;
    for (const RunFiles* run : runs.all()) {
      for (const auto& [name, value] : run->config) names.insert(name);
    }
    std::string rows;
    for (const std::string& name : names) {
      const auto value_in = [&](size_t run) {
        const auto found = runs[run].config.find(name);
        return found == runs[run].config.end() ? std::string("unset") : runs.text()(found->second);
      };
      std::vector<std::string> values;
      for (size_t i = 0; i < runs.size(); ++i) values.push_back(value_in(i));
      if (std::ranges::all_of(values, [&](const std::string& value) { return value == values.front(); })) continue;
      rows += fmt::format("<tr><td><code>{}</code></td><td>{}</td></tr>\n", runs.text()(name),
                          fmt::join(values, "</td><td>"));
    }
    std::vector<std::string> run_names;
    for (size_t i = 0; i < runs.size(); ++i) run_names.push_back(runs.name_of(i));
    html += rows.empty() ? "<p>The options of these runs are the same.</p>\n"
                         : fmt::format(
                               "<p>What differs:</p><div class=\"scroll\"><table><thead><tr><th>option</th><th>{}"
                               "</th></tr></thead>\n{}</table></div>\n",
                               fmt::join(run_names, "</th><th>"), rows);
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].config_text.empty()) continue;
    html += fmt::format("<details><summary>{}config.toml</summary><pre>{}</pre></details>\n", runs.tag(i),
                        runs.text()(runs[i].config_text));
  }
  return html;
}

std::string log_part(const PageRuns& runs) {
  if (std::ranges::all_of(runs.all(), [](const RunFiles* run) { return run->log_tail.empty(); })) return "";
  std::string html = "<h2>Log</h2>\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].log_tail.empty()) continue;
    html += fmt::format("<details><summary>{}the end of log.txt</summary><pre>{}</pre></details>\n", runs.tag(i),
                        runs.text()(runs[i].log_tail));
  }
  return html;
}

}  // namespace tandem::report
