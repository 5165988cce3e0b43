// Shows samples of a run on a page of `tandem view`: prompts, responses and rewards, shaded by advantages. The script
// searches the texts of each article (`pre`, .warn and .label) and filters and sorts by its data attributes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "base/message_text.h"
#include "report/page_parts.h"
#include "report/report.h"

namespace tandem::report {

namespace {

// So many samples of a file are seen when it is unfolded, so that what stands below them is not far away.
constexpr size_t kUnfoldedSamples = 8;

// Returns the class that shades text by its advantage: "p1" to "p4" above 0, "n1" to "n4" below, by the part that it is
// of the largest of its file; "" for none and for 0.
std::string advantage_class(std::optional<double> advantage, double largest) {
  constexpr double kShades = 4.0;
  if (!advantage || *advantage == 0.0 || !std::isfinite(*advantage) || largest <= 0.0) return "";
  const double shade = std::clamp(std::ceil(kShades * std::abs(*advantage) / largest), 1.0, kShades);
  return fmt::format("{}{:.0f}", *advantage > 0.0 ? 'p' : 'n', shade);
}

// Returns the text of a response or a piece of it, shaded as one.
std::string shaded_text(const std::string& text_html, const std::string& shade) {
  return shade.empty() ? fmt::format("<pre>{}</pre>", text_html)
                       : fmt::format("<pre class=\"{}\">{}</pre>", shade, text_html);
}

// Returns tokens, each shaded by its advantage; its title has the numbers.
std::string tokens_html(std::span<const ShownToken> tokens, double largest, const PageText& text) {
  std::string html;
  for (const ShownToken& token : tokens) {
    if (token.text.empty() && !token.advantage) continue;
    std::string title = token.advantage ? "advantage " + number_text(*token.advantage, 4) : "not trained on";
    if (token.logprob) title += ", log-prob " + number_text(*token.logprob, 4);
    const std::string shade = advantage_class(token.advantage, largest);
    const std::string shade_attribute = shade.empty() ? "" : fmt::format(" class={}", shade);
    html += fmt::format("<i{} title=\"{}\">{}</i>", shade_attribute, title, text(token.text));
  }
  return html;
}

// Returns the response of one turn: token by token where they have advantages of their own.
std::string response_html(const ShownSample& sample, double largest, const PageText& text) {
  if (sample.tokens.empty()) return shaded_text(text(sample.response), advantage_class(sample.advantage, largest));
  const std::span<const ShownToken> all = sample.tokens;
  std::string html = "<pre class=\"tokens\">" + tokens_html(all.first(sample.num_begin_tokens), largest, text);
  if (sample.num_tokens > all.size())
    html += fmt::format("\n[... {} are left out here ...]\n",
                        base::counted(static_cast<int64_t>(sample.num_tokens - all.size()), "token"));
  return html + tokens_html(all.subspan(sample.num_begin_tokens), largest, text) + "</pre>";
}

// Returns how much of a piece is trained on, which chooses its shade.
const char* shade_of(const ShownPiece& piece) {
  if (piece.trained_length == 0) return "untrained";
  return piece.trained_length < piece.length ? "partly" : "trained";
}

// Returns the pieces of a response of several turns: the speaker of each, and, shaded, whether it is trained on.
std::string pieces_html(const ShownSample& sample, double largest, const PageText& text) {
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
    const std::string advantage_shade = shade == "trained" ? advantage_class(sample.advantage, largest) : "";
    html += fmt::format("<div class=\"piece {}\"><p class=\"faint\">{}, {}, {}</p>{}</div>\n", shade, text(piece.from),
                        base::counted(piece.length, "token"), trained,
                        piece.tokens.empty()
                            ? shaded_text(text(piece.text), advantage_shade)
                            : "<pre class=\"tokens\">" + tokens_html(piece.tokens, largest, text) + "</pre>");
  }
  return html;
}

// Returns what the script sorts and filters by.
std::string data_attributes(const ShownSample& sample, const PageText& text) {
  std::string html = fmt::format(" data-length=\"{}\" data-turns=\"{}\" data-status=\"{}\"", sample.response_length,
                                 sample.num_turns, text(sample.status));
  const auto add = [&](const char* name, std::optional<double> value) {
    if (value && std::isfinite(*value)) html += fmt::format(" data-{}=\"{}\"", name, *value);
  };
  add("reward", sample.reward);
  add("advantage", sample.advantage);
  add("logprob", sample.mean_logprob);
  if (!sample.failure.empty()) html += " data-failed=\"1\"";
  return html;
}

// `prompt_above` is that of the sample before it, `largest` the advantage with the strongest shade.
std::string sample_html(const ShownSample& sample, const std::string& prompt_above, double largest,
                        const PageText& text) {
  std::string html = fmt::format("<article{}><p>", data_attributes(sample, text));
  if (sample.reward) {
    html += fmt::format("<strong>reward {}</strong>", number_text(*sample.reward, 4));
  } else {
    html += sample.is_given ? "<strong>given answer</strong>" : "<strong>no reward</strong>";
  }
  if (sample.advantage) html += fmt::format(", advantage {}", number_text(*sample.advantage, 4));
  html += fmt::format(", {}, {}", base::counted(sample.response_length, "token"), text(sample.status));
  if (sample.mean_logprob) html += fmt::format(", mean log-prob {}", number_text(*sample.mean_logprob, 4));
  for (const std::string& mark : sample.marks) html += fmt::format(" <span class=\"chip\">{}</span>", mark);
  html += "</p>\n";
  if (!sample.failure.empty()) html += fmt::format("<p class=\"warn\">{}</p>\n", text(sample.failure));
  if (sample.prompt != prompt_above)
    html += fmt::format("<p class=\"faint\">prompt of group {}</p><pre class=\"prompt\">{}</pre>\n", sample.group_id,
                        text(sample.prompt));
  if (sample.prompt == prompt_above) html += "<p class=\"faint same\">the same prompt</p>\n";
  html += sample.pieces.empty() ? "<p class=\"faint\">response</p>" + response_html(sample, largest, text) + "\n"
                                : pieces_html(sample, largest, text);
  if (!sample.label.empty())
    html += fmt::format("<p class=\"faint\">label: <span class=\"label\">{}</span></p>\n", text(sample.label));
  return html + "</article>\n";
}

// Returns the controls of the script, which shows them: without it they would do nothing.
std::string finder_html(const PageRuns& runs) {
  std::string html =
      "<form class=\"finder\" hidden>\n"
      "<label>Search <input type=\"search\" name=\"words\" placeholder=\"words of prompt or response\"></label>\n"
      "<label>Sort <select name=\"order\"><option value=\"\">as sampled</option>";
  for (const auto& [value, name] :
       std::to_array<std::pair<const char*, const char*>>({{"-reward", "highest reward"},
                                                           {"reward", "lowest reward"},
                                                           {"-length", "longest"},
                                                           {"length", "shortest"},
                                                           {"-turns", "most turns"},
                                                           {"turns", "fewest turns"},
                                                           {"-advantage", "highest advantage"},
                                                           {"advantage", "lowest advantage"},
                                                           {"logprob", "least likely"},
                                                           {"-logprob", "most likely"}}))
    html += fmt::format("<option value=\"{}\">{}</option>", value, name);
  html += "</select></label>\n<label>From <select name=\"file\"><option value=\"\">all files</option>";
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string run = runs.are_several() ? runs.name_of(i) + ": " : "";
    for (const SampleSet& set : runs[i].samples)
      html +=
          fmt::format("<option value=\"{}/{}\">{}{}</option>", i, runs.text()(set.file), run, runs.text()(set.file));
  }
  return html +
         "</select></label>\n<label>Ended <select name=\"status\"><option value=\"\">in any way</option>"
         "<option>completed</option><option>truncated</option><option>aborted</option>"
         "<option value=\"failed\">grading failed</option></select></label>\n"
         "<label>Reward from <input type=\"number\" name=\"least\" step=\"any\"></label>\n"
         "<label>to <input type=\"number\" name=\"most\" step=\"any\"></label>\n"
         "<button type=\"reset\">Clear</button>\n<output></output>\n</form>\n"
         "<div class=\"found\"></div>\n<button class=\"more\" type=\"button\" hidden>Show more</button>\n";
}

// Returns what the shades mean, or nothing where no sample has an advantage.
std::string shades_html(const PageRuns& runs) {
  bool has_advantages = false, has_tokens = false;
  for (const RunFiles* run : runs.all()) {
    for (const SampleSet& set : run->samples) {
      has_advantages = has_advantages || set.largest_advantage > 0.0;
      has_tokens = has_tokens || std::ranges::any_of(set.samples, [](const ShownSample& sample) {
                     return !sample.tokens.empty() || std::ranges::any_of(sample.pieces, [](const ShownPiece& piece) {
                       return !piece.tokens.empty();
                     });
                   });
    }
  }
  if (!has_advantages) return "";
  return fmt::format(
      "<p class=\"faint\">Responses are shaded by advantage: <i class=\"n4\">lowest</i><i class=\"n2\">below 0</i>"
      "<i>0, or not trained on</i><i class=\"p2\">above 0</i><i class=\"p4\">highest</i>, by the largest of their "
      "file.{}</p>\n",
      has_tokens ? " Where tokens have advantages of their own, each is shaded by its own; under the pointer it shows "
                   "its advantage and its log-prob."
                 : "");
}

}  // namespace

std::string samples_part(const PageRuns& runs) {
  if (std::ranges::all_of(runs.all(), [](const RunFiles* run) { return run->samples.empty(); })) return "";
  // The first samples of a page of one run are visible at once; all others are folded.
  const auto is_open = [&](const SampleSet& set) { return !runs.are_several() && &set == &runs[0].samples.front(); };
  std::string html = "<h2>Samples</h2>\n" + shades_html(runs) + finder_html(runs);
  html += "<div class=\"halves samples\">\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    html += fmt::format("<div>{}\n", runs.heading(i));
    if (runs[i].samples.empty()) html += "<p class=\"faint\">none</p>";
    for (const SampleSet& set : runs[i].samples) {
      html += fmt::format("<details{} data-file=\"{}/{}\"><summary><code>{}</code>: {} of {}",
                          is_open(set) ? " open" : "", i, runs.text()(set.file), runs.text()(set.file),
                          set.samples.size(), base::counted(set.num_samples, "sample"));
      if (set.num_given > 0) html += fmt::format(", {}", base::counted(set.num_given, "given answer"));
      if (set.num_with_reward > 0) html += fmt::format(", mean reward {}", number_text(set.mean_reward, 4));
      html += "</summary>\n";
      std::string prompt_above = "\xff";  // no prompt is this, since they are UTF-8
      for (size_t j = 0; j < set.samples.size(); ++j) {
        if (j == kUnfoldedSamples)
          html += fmt::format("<details><summary>the other {}</summary>\n", set.samples.size() - j);
        html += sample_html(set.samples[j], prompt_above, set.largest_advantage, runs.text());
        prompt_above = set.samples[j].prompt;
      }
      html += set.samples.size() > kUnfoldedSamples ? "</details>\n</details>\n" : "</details>\n";
    }
    html += "</div>\n";
  }
  return html + "</div>\n";
}

}  // namespace tandem::report
