// Options::help_text(): writes the text of `tandem VERB --help`, the options by group with their defaults.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "base/byte_count.h"
#include "base/options.h"

namespace tandem::base {
namespace {

// Adds `text` to `out` in lines of at most `width` columns, all but the first indented.
void append_wrapped(std::string& out, const std::string& text, size_t indent, size_t width) {
  size_t column = indent;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (column > indent && column + 1 + (end - begin) > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out.append(text, begin, end - begin);
    column += end - begin;
    begin = end + 1;
  }
  out += '\n';
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

constexpr size_t kHelpIndent = 36, kHelpWidth = 110;

void append_help_line(std::string& out, const std::string& flag, const std::string& help) {
  out += "  " + flag;
  const size_t column = 2 + flag.size();
  out += column + 2 > kHelpIndent ? "\n" + std::string(kHelpIndent, ' ') : std::string(kHelpIndent - column, ' ');
  append_wrapped(out, help, kHelpIndent, kHelpWidth);
}

}  // namespace

std::string Options::help_text(const std::string& usage, const std::string& description) const {
  const auto positional = std::ranges::find_if(options_, &Option::is_positional);
  std::string out = "Usage: " + usage;
  if (positional != options_.end()) out += " " + upper(positional->name()) + " ...";
  out += "\n\n";
  append_wrapped(out, description, 0, kHelpWidth);
  std::vector<std::string> groups;
  for (const Option& option : options_) {
    if (std::find(groups.begin(), groups.end(), option.group()) == groups.end()) groups.push_back(option.group());
  }
  for (const std::string& group : groups) {
    out += "\n" + group + ":\n";
    for (const Option& option : options_) {
      if (option.group() != group) continue;
      std::string help = option.help();
      if (!option.choices().empty()) help += fmt::format(" [{}]", fmt::join(option.choices(), "|"));
      append_help_line(out, flag_text(option), help + default_text(option));
    }
  }
  if (groups.empty() || groups.back() != "general") out += "\ngeneral:\n";
  if (std::ranges::any_of(options_, &Option::is_bytes)) append_help_line(out, "BYTES", kByteUnits);
  append_help_line(out, "--config FILE", "TOML file of the same names (without --); flags win over it");
  append_help_line(out, "--print-config", "print the resulting configuration as such a file, and stop");
  append_help_line(out, "--help, -h", "print this, and stop");
  return out;
}

}  // namespace tandem::base
