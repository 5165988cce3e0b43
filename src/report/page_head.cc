// Writes the head of a page of `tandem view`: which code may run in it, the runs' names, and how far they are.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/message_text.h"
#include "base/sha256.h"
#include "report/page_parts.h"
#include "report/run_page.h"
#include "report/run_page_assets.h"
#include "report/terminal.h"

namespace tandem::report {

namespace {

// Returns base64 (RFC 4648) of a hash that is given in hexadecimal digits, as a Content-Security-Policy names it.
std::string base64_of_hex(std::string_view hex) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<uint32_t> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<uint32_t>(std::stoul(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) bits = bits << 8 | (j < count ? bytes[i + j] : 0);
    for (size_t j = 0; j < 4; ++j) text += j <= count ? kLetters[bits >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

std::string hash_source(std::string_view text) { return "'sha256-" + base64_of_hex(base::sha256(text)) + "'"; }

// Returns a text of config.toml without the quotes around it.
std::string unquoted(const std::string& value) {
  return value.size() >= 2 && value.front() == '"' && value.back() == '"' ? value.substr(1, value.size() - 2) : value;
}

std::string state_of(const RunFiles& run, const PageText& text_of) {
  const Position& last = run.positions.back();
  double finished = 0, tokens = 0;
  for (const Position& position : run.positions) {
    finished = std::max(finished, std::floor(position.rollouts));
    tokens = std::max(tokens, position.tokens);
  }
  std::string text = base::with_commas(std::llround(finished));
  const auto planned = run.config.find("num-rollout");
  const bool has_plan = planned != run.config.end() && planned->second.size() < 12;
  if (has_plan) text += " of " + text_of(planned->second);
  text += run.has_rollouts ? " rollouts" : " steps";
  text += fmt::format(", {} of work", clock_text(last.seconds));
  if (tokens > 0)
    text += fmt::format(", {} tokens {}", short_number(tokens),
                        run.has_rollouts ? "sampled" : "read in training, prompts too");
  return text;
}

}  // namespace

std::string page_head(const PageRuns& runs) {
  std::string html = kPageMark;
  std::vector<std::string> names;
  for (size_t i = 0; i < runs.size(); ++i) names.push_back(runs.name_of(i));
  std::string title = names.back();
  if (runs.are_several()) title = fmt::format("{} and {}", fmt::join(names.begin(), names.end() - 1, ", "), title);
  html += fmt::format(
      "<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src {}; script-src {}; "
      "base-uri 'none'; form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"referrer\" content=\"no-referrer\">\n<title>{} - Tandem</title>\n<style>{}</style>\n</head>\n"
      "<body>\n",
      hash_source(kPageStyle), hash_source(kPageScript), title, kPageStyle);
  html += fmt::format("<h1>{}</h1>\n<div class=\"runs\">\n", title);
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunFiles& run = runs[i];
    html += fmt::format("<div><p>{}<strong>{}</strong></p>", runs.tag(i), state_of(run, runs.text()));
    html += fmt::format("<p class=\"faint\">{} in {}", run.has_rollouts ? "a run" : "a supervised run",
                        runs.text().path(run.path));
    const auto model = run.config.find("hf-checkpoint");
    if (model != run.config.end()) html += fmt::format("; model {}", runs.text().path(unquoted(model->second)));
    html += "</p></div>\n";
  }
  html += "</div>\n";
  // The buttons are in the order of kAxes. They stand before everything that they change, so that the style alone can
  // do it.
  html += fmt::format(
      "<input class=\"axis\" type=\"radio\" name=\"x\" id=\"x-rollouts\" checked>"
      "<input class=\"axis\" type=\"radio\" name=\"x\" id=\"x-time\">"
      "<input class=\"axis\" type=\"radio\" name=\"x\" id=\"x-tokens\">"
      "<input class=\"axis\" type=\"checkbox\" id=\"smooth\" checked>\n"
      "<div class=\"axes\"><span>Curves by</span><label for=\"x-rollouts\">{}</label>"
      "<label for=\"x-time\">time</label><label for=\"x-tokens\">tokens</label>"
      "<label for=\"smooth\">smoothed</label>",
      runs.rollouts_title());
  for (size_t i = 0; i < runs.size() && runs.are_several(); ++i) {
    html += fmt::format("<span>{} {}</span>", PageRuns::stroke(i), runs.name_of(i));
  }
  html += "</div>\n<main>\n";
  return html;
}

}  // namespace tandem::report
