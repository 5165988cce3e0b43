#include "options/names.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <utility>

#include "base/message_text.h"

namespace tandem::options {

namespace {

// Returns whether `word` abbreviates `name`, as "bf16" does "bfloat16": it has the same first letter, then some of the
// others in their order, and the last.
bool abbreviates(std::string_view word, std::string_view name) {
  if (word.size() < 3 || word.size() >= name.size() || word.front() != name.front() || word.back() != name.back()) {
    return false;
  }
  size_t at = 0;
  for (const char letter : word) {
    at = name.find(letter, at);
    if (at == std::string_view::npos) return false;
    ++at;
  }
  return true;
}

}  // namespace

// The table of distances between the beginnings of both is computed one row at a time.
size_t edit_distance(std::string_view a, std::string_view b, size_t limit) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, diagonal + 1, replaced});
    }
    if (*std::min_element(row.begin(), row.end()) >= limit) return limit;  // later rows are never below this one
  }
  return row[b.size()];
}

std::optional<std::string> nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  std::string wanted(name);
  std::replace(wanted.begin(), wanted.end(), '_', '-');
  // A third of the letters wrong is still a typo; more is another word.
  size_t best_distance = std::max<size_t>(2, wanted.size() / 3) + 1;
  std::optional<std::string> best;
  for (const std::string& candidate : candidates) {
    // A name in a file may be a megabyte long, so the distance to a name of a very different length is not computed.
    if (wanted.size() >= candidate.size() + best_distance) continue;
    if (candidate.size() >= wanted.size() + best_distance) continue;
    const size_t distance = edit_distance(wanted, candidate, best_distance);
    if (distance < best_distance && distance < candidate.size()) {
      best_distance = distance;
      best = candidate;
    }
  }
  if (best) return best;
  for (const std::string& candidate : candidates) {
    if (!wanted.empty() && candidate.starts_with(wanted)) return candidate;
  }
  for (const std::string& candidate : candidates) {
    if (abbreviates(wanted, candidate)) return candidate;
  }
  return std::nullopt;
}

bool matches(std::string_view pattern, std::string_view name) {
  return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1)) : name == pattern;
}

bool names_flag(std::string_view text, const std::string& name) {
  const std::string flag = "--" + name;
  for (size_t at = text.find(flag); at != std::string_view::npos; at = text.find(flag, at + 1)) {
    const size_t end = at + flag.size();
    const char next = end < text.size() ? text[end] : ' ';
    if (next != '-' && std::isalnum(static_cast<unsigned char>(next)) == 0) return true;
  }
  return false;
}

std::string dashed(std::string name) {
  std::ranges::replace(name, '_', '-');
  return name;
}

std::string shown(const std::string& word) { return "'" + base::one_line(word) + "'"; }

}  // namespace tandem::options
