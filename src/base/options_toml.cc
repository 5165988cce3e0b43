// The config file: TOML with the flags' names at the top level, read with its places and written by --print-config.

// toml++ asserts what its parser then refuses with a place: a file that begins with "[#" would end the process.
#define TOML_ASSERT(expression) static_cast<void>(0)
#include <toml++/toml.h>

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/env.h"
#include "base/files.h"
#include "base/message_text.h"
#include "base/options.h"
#include "base/stand_ins.h"

namespace tandem::base {
namespace {

std::string place_text(const std::string& path, const toml::source_position& place) {
  return fmt::format("{}:{}:{}", path, place.line, place.column);
}

const char* expected_text(OptionKind kind) {
  switch (kind) {
    case OptionKind::kInteger: return "a whole number";
    case OptionKind::kNumber: return "a number";
    case OptionKind::kBool: return "true or false";
    case OptionKind::kText: return "text in quotes";
  }
  return "";
}

// One TOML value as the word that a command line would hold. The type must be the option's: "5" is no number here.
std::string to_word(const std::string& where, const toml::node& node, OptionKind kind) {
  if (kind == OptionKind::kText && node.is_string()) return **node.as_string();
  if (kind == OptionKind::kBool && node.is_boolean()) return **node.as_boolean() ? "true" : "false";
  const bool is_number_kind = kind == OptionKind::kInteger || kind == OptionKind::kNumber;
  if (is_number_kind && node.is_integer()) return std::to_string(**node.as_integer());
  if (kind == OptionKind::kNumber && node.is_floating_point()) return fmt::format("{}", **node.as_floating_point());
  throw UserError(where + ": expects " + expected_text(kind));
}

std::vector<std::string> to_words(const std::string& where, const toml::node& node, const Option& option) {
  TANDEM_USER_CHECK(option.is_list() == node.is_array(), where + ": expects",
                    option.is_list() ? "a list in [ ]" : "one value, not a list");
  if (!option.is_list()) return {to_word(where, node, option.kind())};
  std::vector<std::string> words;
  for (const toml::node& element : *node.as_array()) words.push_back(to_word(where, element, option.kind()));
  return words;
}

// A TOML basic string: everything that is not plain text is escaped.
std::string quote(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\u{:04X}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

// toml++ 3.3 frees a table within a table within a table, so a name of very many parts overflows the stack: the reader
// refuses more dots in a line, and the writer has fewer.
constexpr int64_t kMaxDotsOfLine = 500;

int64_t num_dots_in(std::string_view text) { return std::count(text.begin(), text.end(), '.'); }

std::string without_dots(const std::string& quoted) {
  std::string out;
  for (const char c : quoted) out += c == '.' ? "\\u002E" : std::string(1, c);
  return out;
}

std::string to_toml(const std::string& word, OptionKind kind) {
  if (kind == OptionKind::kText) return quote(word);
  // A double without a point would be read as a 64-bit integer, and large ones do not fit.
  if (kind == OptionKind::kNumber && word.find_first_of(".en") == std::string::npos) return word + ".0";
  return word;
}

std::string value_text(const Option& option, const std::vector<std::string>& words) {
  std::string out = option.is_list() ? "[" : "";
  for (const std::string& word : words) out += (out.size() > 1 ? ", " : "") + to_toml(word, option.kind());
  if (option.is_list()) out += "]";
  return option.kind() == OptionKind::kText && num_dots_in(out) > kMaxDotsOfLine ? without_dots(out) : out;
}

void check_dots(std::string_view text, const std::string& path) {
  int64_t num_dots = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    num_dots = text[at] == '\n' ? 0 : num_dots + (text[at] == '.' ? 1 : 0);
    TANDEM_USER_CHECK(num_dots <= kMaxDotsOfLine,
                      place_in_text(path, text, at) + ": a name of many parts; write every option as name = value");
  }
}

}  // namespace

void Options::read_config_file(const std::string& path, OptionMistakes& mistakes) {
  const std::string text = read_file(path, int64_t{1} << 20);
  check_dots(text, path);
  // Of characters that are not ASCII toml++ 3.3 takes some for unreachable code.
  CharacterPlaceholders stand_ins;
  const std::string_view byte_order_mark = "\xEF\xBB\xBF";
  const std::string_view body = std::string_view(text).substr(text.starts_with(byte_order_mark) ? 3 : 0);
  const std::string safe_text = stand_ins.replace(body, path);
  toml::table table;
  try {
    table = toml::parse(safe_text, path);
  } catch (const toml::parse_error& error) {
    throw UserError(place_text(path, error.source().begin) + ": " +
                    one_line(stand_ins.restore(error.description()), 300));
  }
  // The table is sorted by name; mistakes are told in the file's order.
  std::vector<std::pair<std::string, const toml::node*>> entries;
  for (const auto& [key, node] : table) entries.emplace_back(stand_ins.restore(key.str()), &node);
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.second->source().begin.line < b.second->source().begin.line;
  });
  for (const auto& [name, node] : entries) {
    const std::string where = place_text(path, node->source().begin) + ": " + one_line(name);
    if (const std::string* const reason = unsupported_reason(name)) {
      mistakes.refuse(where, *reason);
      continue;
    }
    try {
      TANDEM_USER_CHECK(!node->is_table() && !node->is_array_of_tables(),
                        where + ": is a table; write every option as name = value at the top level");
      Option* const option = find(name);
      if (option == nullptr) throw UserError(unknown_text(where, name));
      option->set_mentioned();
      std::vector<std::string> words = to_words(where, *node, *option);
      for (std::string& word : words) word = stand_ins.restore(word);
      set(*option, where, words);
    } catch (const UserError& error) {
      mistakes.add(error.what());
    }
  }
}

std::string Options::config_text() const {
  std::string out = "# Options as `--config FILE` reads them. A line that begins with # is not set.\n";
  std::string group;
  for (const Option& option : options_) {
    if (option.group() != group) {
      group = option.group();
      out += "\n# " + group + "\n";
    }
    auto words = option.words();
    if (words && option.is_path()) {
      for (std::string& word : *words) word = shorten_home(word, home_);
    }
    const bool is_unset = !words || (option.is_required() && !option.is_given());
    out += is_unset ? "# " + option.name() + " =\n" : option.name() + " = " + value_text(option, *words) + "\n";
  }
  return out;
}

}  // namespace tandem::base
