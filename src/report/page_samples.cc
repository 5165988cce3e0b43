// Shows samples of a run on a page of `tandem view`: prompts, responses and rewards.
#include <fmt/format.h>

#include <algorithm>

#include "base/message_text.h"
#include "report/page_parts.h"
#include "report/report.h"

namespace tandem::report {

namespace {

// Returns how much of a piece is trained on, which chooses its shade.
const char* shade_of(const ShownPiece& piece) {
  if (piece.trained_length == 0) return "untrained";
  return piece.trained_length < piece.length ? "partly" : "trained";
}

// Returns the pieces of a response of several turns: the speaker of each, and, shaded, whether it is trained on.
std::string pieces_html(const ShownSample& sample, const PageText& text) {
  std::string html = fmt::format("<p class=\"faint\">response of {}</p>\n", base::counted(sample.num_turns, "turn"));
  const size_t num_hidden = sample.num_pieces - sample.pieces.size();
  for (size_t i = 0; i < sample.pieces.size(); ++i) {
    const ShownPiece& piece = sample.pieces[i];
    if (num_hidden > 0 && i == sample.pieces.size() / 2)
      html += fmt::format("<p class=\"faint\">{} left out here</p>\n",
                          base::counted(static_cast<int64_t>(num_hidden), "piece"));
    const std::string shade = shade_of(piece);
    const std::string trained =
        shade == "partly" ? base::with_commas(piece.trained_length) + " of them trained" : shade;
    html += fmt::format("<div class=\"piece {}\"><p class=\"faint\">{}, {}, {}</p><pre>{}</pre></div>\n", shade,
                        text(piece.from), base::counted(piece.length, "token"), trained, text(piece.text));
  }
  return html;
}

// `prompt_above` is that of the sample before it.
std::string sample_html(const ShownSample& sample, const std::string& prompt_above, const PageText& text) {
  std::string html = "<article><p>";
  if (sample.reward) html += fmt::format("<strong>reward {}</strong>", number_text(*sample.reward, 4));
  if (!sample.reward) html += "<strong>no reward</strong>";
  if (sample.advantage) html += fmt::format(", advantage {}", number_text(*sample.advantage, 4));
  html += fmt::format(", {}, {}", base::counted(sample.response_length, "token"), text(sample.status));
  if (sample.mean_logprob) html += fmt::format(", mean log-prob {}", number_text(*sample.mean_logprob, 4));
  for (const std::string& mark : sample.marks) html += fmt::format(" <span class=\"chip\">{}</span>", mark);
  html += "</p>\n";
  if (!sample.failure.empty()) html += fmt::format("<p class=\"warn\">{}</p>\n", text(sample.failure));
  if (sample.prompt != prompt_above)
    html +=
        fmt::format("<p class=\"faint\">prompt of group {}</p><pre>{}</pre>\n", sample.group_id, text(sample.prompt));
  if (sample.prompt == prompt_above) html += "<p class=\"faint\">the same prompt</p>\n";
  html += sample.pieces.empty() ? fmt::format("<p class=\"faint\">response</p><pre>{}</pre>\n", text(sample.response))
                                : pieces_html(sample, text);
  if (!sample.label.empty()) html += fmt::format("<p class=\"faint\">label: {}</p>\n", text(sample.label));
  return html + "</article>\n";
}

}  // namespace

std::string samples_part(const PageRuns& runs) {
  if (std::ranges::all_of(runs.all(), [](const RunFiles* run) { return run->samples.empty(); })) return "";
  // The first samples of a page of one run are visible at once; all others are folded.
  const auto is_open = [&](const SampleSet& set) { return !runs.are_several() && &set == &runs[0].samples.front(); };
  std::string html = "<h2>Samples</h2>\n<div class=\"halves\">\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    html += fmt::format("<div>{}\n", runs.heading(i));
    if (runs[i].samples.empty()) html += "<p class=\"faint\">none</p>";
    for (const SampleSet& set : runs[i].samples) {
      html += fmt::format("<details{}><summary><code>{}</code>: {} of {}", is_open(set) ? " open" : "",
                          runs.text()(set.file), set.samples.size(), base::counted(set.num_samples, "sample"));
      if (set.num_with_reward > 0) html += fmt::format(", mean reward {}", number_text(set.mean_reward, 4));
      html += "</summary>\n";
      std::string prompt_above = "\xff";  // no prompt is this, since they are UTF-8
      for (const ShownSample& each : set.samples) {
        html += sample_html(each, prompt_above, runs.text());
        prompt_above = each.prompt;
      }
      html += "</details>\n";
    }
    html += "</div>\n";
  }
  return html + "</div>\n";
}

}  // namespace tandem::report
