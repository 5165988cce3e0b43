// Options::help_text(): writes the text of `tandem VERB --help`, the options by group with their defaults.
#include "options/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/byte_count.h"
#include "base/env.h"
#include "options/options.h"

namespace tandem::options {
namespace {

// Returns the end of the first piece of a list of choices, [a|b|c]: as many of them as fit, with the '|' after them;
// one at least.
size_t end_of_choices(std::string_view word, size_t room) {
  const size_t last = word.rfind('|', room - 1);
  const size_t bar = last != std::string_view::npos ? last : word.find('|');
  return bar == std::string_view::npos ? word.size() : bar + 1;
}

std::string flag_text(const Option& option) {
  const std::string dots = option.is_list() ? " ..." : "";
  switch (option.kind()) {
    case OptionKind::kBool: return "--[no-]" + option.name();
    case OptionKind::kInteger: return "--" + option.name() + (option.is_bytes() ? " BYTES" : " N") + dots;
    case OptionKind::kNumber: return "--" + option.name() + " X" + dots;
    case OptionKind::kText: return "--" + option.name() + " TEXT" + dots;
  }
  return {};
}

std::string default_text(const Option& option) {
  if (option.is_required()) return " (required)";
  const auto words = option.words();
  const std::string value = words ? fmt::format("{}", fmt::join(*words, " ")) : "";
  if (value.empty()) return "";
  if (option.kind() == OptionKind::kBool) return value == "true" ? " (default: on)" : "";
  return " (default: " + value + ")";
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

constexpr size_t kColumns = 110, kLeastColumns = 60, kMostColumns = 120;
constexpr size_t kUsualColumns = 80;  // of a terminal that does not say how wide it is

// Returns where the texts begin: next to the flags, of which a narrow terminal gets less room.
size_t help_indent(size_t columns) { return columns < kUsualColumns ? 24 : 36; }

void append_help_line(std::string& out, const std::string& flag, const std::string& help, size_t columns) {
  const size_t indent = help_indent(columns);
  out += "  " + flag;
  const size_t column = 2 + flag.size();
  out += column + 2 > indent ? "\n" + std::string(indent, ' ') : std::string(indent - column, ' ');
  append_wrapped(out, help, indent, columns);
}

}  // namespace

size_t help_columns(int descriptor) {
  if (isatty(descriptor) != 1) return kColumns;
  size_t columns = 0;
  const std::string typed = base::value_of("COLUMNS");
  std::from_chars(typed.data(), typed.data() + typed.size(), columns);
  winsize size = {};
  if (columns == 0 && ioctl(descriptor, TIOCGWINSZ, &size) == 0) columns = size.ws_col;
  return columns == 0 ? kUsualColumns : std::clamp(columns, kLeastColumns, kMostColumns);
}

void append_wrapped(std::string& out, std::string_view text, size_t indent, size_t columns) {
  size_t column = indent;
  const auto begin_line = [&] {
    out += "\n" + std::string(indent, ' ');
    column = indent;
  };
  while (!text.empty()) {
    std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    if (column > indent && column + 1 + word.size() > columns) {
      begin_line();
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    while (column + word.size() > columns) {  // it is longer than a line
      const size_t end = end_of_choices(word, columns - indent);
      if (end == word.size()) break;
      out += word.substr(0, end);
      word.remove_prefix(end);
      begin_line();
    }
    out += word;
    column += word.size();
  }
  out += '\n';
}

std::string Options::help_text(const std::string& usage, const std::string& description) const {
  const size_t columns = help_columns(STDOUT_FILENO);
  const auto positional = std::ranges::find_if(options_, &Option::is_positional);
  std::string out = "Usage: " + usage;
  if (positional != options_.end()) out += " " + upper(positional->name()) + " ...";
  out += "\n\n";
  append_wrapped(out, description, 0, columns);
  const std::vector<std::string> groups = this->groups();
  for (const std::string& group : groups) {
    out += "\n" + group + ":\n";
    for (const Option& option : options_) {
      if (option.group() != group) continue;
      std::string help = option.help();
      if (!option.choices().empty()) help += fmt::format(" [{}]", fmt::join(option.choices(), "|"));
      append_help_line(out, flag_text(option), help + default_text(option), columns);
    }
  }
  if (groups.empty() || groups.back() != "general") out += "\ngeneral:\n";
  if (std::ranges::any_of(options_, &Option::is_bytes)) append_help_line(out, "BYTES", base::kByteUnits, columns);
  append_help_line(out, "--config FILE", "TOML file of the same names (without --); flags win over it", columns);
  append_help_line(out, "--print-config", "print the resulting configuration as such a file, and stop", columns);
  append_help_line(out, "--help, -h", "print this, and stop", columns);
  return out;
}

}  // namespace tandem::options
