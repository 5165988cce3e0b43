// Reads the config file, TOML with the flags' names at the top level, with the places of its entries, and writes it for
// --print-config.

// toml++ asserts in a place where its parser would refuse the text afterwards: a file that begins with "[#" would end
// the process.
#define TOML_ASSERT(expression) static_cast<void>(0)
#include <toml++/toml.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/check.h"
#include "base/env.h"
#include "base/files.h"
#include "base/message_text.h"
#include "base/stand_ins.h"
#include "options/options.h"
#include "options/tables.h"

namespace tandem::options {
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

// Returns one TOML value as the word that a command line would hold. The type must be the option's: the text "5" is no
// number here.
std::string to_word(const std::string& where, const toml::node& node, OptionKind kind) {
  if (kind == OptionKind::kText && node.is_string()) return **node.as_string();
  if (kind == OptionKind::kBool && node.is_boolean()) return **node.as_boolean() ? "true" : "false";
  const bool is_number_kind = kind == OptionKind::kInteger || kind == OptionKind::kNumber;
  if (is_number_kind && node.is_integer()) return std::to_string(**node.as_integer());
  if (kind == OptionKind::kNumber && node.is_floating_point()) return fmt::format("{}", **node.as_floating_point());
  throw UserError(where + ": expects " + expected_text(kind));
}

std::vector<std::string> to_words(const std::string& where, const toml::node& node, const Option& option) {
  const bool may_be_single = !option.is_list() || option.may_be_single();
  TANDEM_USER_CHECK(node.is_array() ? option.is_list() : may_be_single, where + ": expects",
                    option.is_list() ? "a list in [ ]" : "one value, not a list");
  if (option.is_bytes() && node.is_string()) return {**node.as_string()};
  if (!node.is_array()) return {to_word(where, node, option.kind())};
  std::vector<std::string> words;
  for (const toml::node& element : *node.as_array()) words.push_back(to_word(where, element, option.kind()));
  return words;
}

// Returns a TOML basic string, in which everything but plain text is escaped.
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

// toml++ 3.3 destroys nested tables recursively, so a name of very many parts overflows the stack: the reader refuses a
// line with more dots than this, and the writer writes fewer.
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
  const bool in_brackets = option.is_list() && !(option.may_be_single() && words.size() == 1);
  std::string out = in_brackets ? "[" : "";
  for (const std::string& word : words) out += (out.size() > 1 ? ", " : "") + to_toml(word, option.kind());
  if (in_brackets) out += "]";
  return option.kind() == OptionKind::kText && num_dots_in(out) > kMaxDotsOfLine ? without_dots(out) : out;
}

void check_dots(std::string_view text, const std::string& path) {
  int64_t num_dots = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    num_dots = text[at] == '\n' ? 0 : num_dots + (text[at] == '.' ? 1 : 0);
    TANDEM_USER_CHECK(num_dots <= kMaxDotsOfLine, base::place_in_text(path, text, at) +
                                                      ": a name of many parts; write every option as name = value");
  }
}

}  // namespace

// A TOML file that was read. toml++ 3.3 treats some characters that are not ASCII as unreachable code, so it is given
// stand-ins for them.
class TomlFile {
 public:
  explicit TomlFile(const std::string& path) : path_(path) {
    const std::string text = base::read_file(path, int64_t{1} << 20);
    check_dots(text, path);
    const std::string_view byte_order_mark = "\xEF\xBB\xBF";
    const std::string_view body = std::string_view(text).substr(text.starts_with(byte_order_mark) ? 3 : 0);
    const std::string safe_text = stand_ins_.replace(body, path);
    try {
      table_ = toml::parse(safe_text, path);
    } catch (const toml::parse_error& error) {
      throw UserError(place_text(path, error.source().begin) + ": " +
                      base::one_line(stand_ins_.restore(error.description()), 300));
    }
  }

  const toml::table& table() const { return table_; }
  std::string restore(std::string_view text) const { return stand_ins_.restore(text); }
  // Returns "FILE:LINE:COLUMN".
  std::string place(const toml::node& node) const { return place_text(path_, node.source().begin); }

 private:
  std::string path_;
  base::CharacterPlaceholders stand_ins_;
  toml::table table_;
};

struct Options::FileTable {
  const TomlFile& file;
  const toml::table* table;
  const char* remedy_for_table;  // completes "NAME: is a table; "
  bool has_help = true;          // the program has --help
  std::string start = {};  // folder that relative paths begin in if they lead to something there; "": the current one
};

namespace {

// The folder in which a run was started, an entry of its config.toml. No option has this name.
constexpr std::string_view kWorkingDirectory = "working-directory";

// Returns the folder in which the relative paths of a run's config.toml begin; "" is the current one. It is the current
// one if the run's directory (its `save`, if that is relative) leads from there to this very file, as it does where the
// run was started or in a copy of that place; else it is the recorded folder.
std::string start_of_paths(const std::string& path, const toml::table& table, const TomlFile& file,
                           const std::string& home) {
  const auto start = table[kWorkingDirectory].value<std::string>();
  if (!start) return "";
  const std::string save = base::expand_home(file.restore(table["save"].value_or(std::string())), home);
  std::error_code none;
  const bool is_here = !save.starts_with('/') && std::filesystem::equivalent(save + "/config.toml", path, none);
  if (is_here) return "";
  return base::expand_home(file.restore(*start), home);
}

// Returns a word of a path option, such as "data.jsonl@[:9]" or "reward.py:f", as a path from `start` if it leads to a
// file there. A word that does not may be no path (the name of a data set), or a path that is yet to be made.
std::string from_start(const std::string& word, const std::string& start, bool is_list) {
  if (start.empty() || word.empty() || word.starts_with('/') || word.starts_with('~')) return word;
  const std::string path = start + "/" + word;
  for (const size_t end : {path.size(), path.rfind("@["), path.rfind(':')}) {
    if (end == std::string::npos || end <= start.size()) continue;
    const std::string one = path.substr(0, end);
    if (base::file_exists(one) || (!is_list && base::directory_exists(one))) return path;
  }
  return word;
}

}  // namespace

void Options::read_entries(const FileTable& from, OptionMistakes& mistakes) {
  // The table is sorted by name; mistakes are reported in the file's order.
  std::vector<std::pair<std::string, const toml::node*>> entries;
  for (const auto& [key, node] : *from.table) entries.emplace_back(from.file.restore(key.str()), &node);
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.second->source().begin.line < b.second->source().begin.line;
  });
  for (const auto& [name, node] : entries) {
    if (name == kWorkingDirectory && from.has_help && node->is_string()) continue;
    const std::string where = from.file.place(*node) + ": " + base::one_line(name);
    const bool is_table = node->is_table() || node->is_array_of_tables();
    if (node->is_table() && from.has_help) {
      FileTable table = from;
      table.table = node->as_table();
      if (answer_whole_keys(table, name, mistakes)) continue;
    }
    if (const Unsupported* const row = is_table ? nullptr : find_unsupported(name)) {
      mistakes.refuse(where, row->reason);
      continue;
    }
    if (const toml::table* const refused = node->as_table()) {
      for (const auto& [key, value] : *refused) {  // given in the wrong place, and not missing
        if (Option* const named = find(from.file.restore(key.str()))) named->set_mentioned();
      }
    }
    Option* const option = is_table ? nullptr : find(name);
    try {
      TANDEM_USER_CHECK(!is_table, where + ": is a table; " + from.remedy_for_table);
      if (option == nullptr) throw UserError(from.has_help ? unknown_text(where, name) : unknown_key_text(where));
      std::vector<std::string> words = to_words(where, *node, *option);
      for (std::string& word : words) word = from.file.restore(word);
      if (option->is_path()) {
        for (std::string& word : words) word = from_start(word, from.start, option->is_list());
      }
      const auto before = option->words();
      set(*option, where, words);
      // A run's config.toml has every option: one that it leaves as it is was asked for by nobody.
      if (option->words() != before) option->set_mentioned();
    } catch (const UserError& error) {
      if (option != nullptr) option->set_mentioned();
      mistakes.add(error.what());
    }
  }
}

bool Options::answer_whole_keys(const FileTable& table, const std::string& key, OptionMistakes& mistakes) {
  bool is_known = false;
  for (const auto& [name, node] : *table.table) {
    const std::string whole = key + "." + table.file.restore(name.str());
    if (const toml::table* const inner = node.as_table()) {
      FileTable next = table;
      next.table = inner;
      if (answer_whole_keys(next, whole, mistakes)) is_known = true;
      continue;
    }
    const std::string answer = elsewhere_text(table.file.place(node) + ": " + base::one_line(whole), whole);
    if (answer.empty()) continue;
    mistakes.add(answer);
    is_known = true;
  }
  return is_known;
}

std::string Options::unknown_key_text(const std::string& where) const {
  std::string names;
  for (const Option& option : options_) names += (names.empty() ? "" : ", ") + option.name();
  return where + ": is no key of this table; there are: " + names;
}

void Options::read_config_file(const std::string& path, OptionMistakes& mistakes) {
  const TomlFile file(path);
  read_entries({.file = file,
                .table = &file.table(),
                .remedy_for_table = "write every option as name = value at the top level",
                .start = start_of_paths(path, file.table(), file, home_)},
               mistakes);
}

std::string Options::toml_text(bool repeats) const {
  std::string out = "# Options as `--config FILE` reads them. A line that begins with # is not set.\n";
  for (const std::string& group : groups()) {
    out += "\n# " + group + "\n";
    for (const Option& option : options_) {
      if (option.group() != group) continue;
      auto words = option.words();
      if (words && option.is_path()) {
        for (std::string& word : *words) word = base::shorten_home(word, home_);
      }
      const bool is_unset = !words || (option.has_no_default() && !option.is_given());
      if (is_unset || (repeats && option.is_of_one_command())) out += "# ";
      out += option.name() + " =" + (is_unset ? "" : " " + value_text(option, *words)) + "\n";
    }
  }
  return out;
}

struct OptionTables::Impl {
  explicit Impl(const std::string& path) : file(path) {}

  // Returns the table of that name, which must be the only entry of `parent`; others are refused.
  const toml::table* only(const toml::table& parent, const std::string& name, const std::string& shown) const {
    for (const auto& [key, node] : parent) {
      TANDEM_USER_CHECK(key.str() == name && node.is_table(),
                        fmt::format("{}: {}: is not known here; {}", file.place(node),
                                    base::one_line(file.restore(key.str())), shown));
    }
    return parent[name].as_table();
  }

  void read(const toml::table& table, Options& options) const {
    OptionMistakes mistakes;
    options.read_entries({file, &table, "write name = value", /*has_help=*/false}, mistakes);
    mistakes.raise({});
  }

  TomlFile file;
  const toml::table* defaults = nullptr;
  std::vector<const toml::table*> list;
};

OptionTables::OptionTables(const std::string& path, const std::string& table, const std::string& defaults,
                           const std::string& list)
    : impl_(std::make_unique<Impl>(path)) {
  const std::string what = fmt::format("write [{0}.{1}] and [[{0}.{2}]]", table, defaults, list);
  const toml::table* const all = impl_->only(impl_->file.table(), table, what);
  if (all == nullptr) return;
  for (const auto& [key, node] : *all) {
    const std::string where =
        fmt::format("{}: {}", impl_->file.place(node), base::one_line(impl_->file.restore(key.str())));
    if (key.str() == defaults) {
      impl_->defaults = node.as_table();
      TANDEM_USER_CHECK(impl_->defaults != nullptr, fmt::format("{}: is no table; {}", where, what));
    } else {
      TANDEM_USER_CHECK(
          key.str() == list && node.is_array_of_tables(),
          fmt::format("{}: {}; {}", where, key.str() == list ? "is no list of tables" : "is not known here", what));
      for (const toml::node& element : *node.as_array()) impl_->list.push_back(element.as_table());
    }
  }
}

OptionTables::~OptionTables() = default;

size_t OptionTables::size() const { return impl_->list.size(); }

std::string OptionTables::place(size_t i) const { return impl_->file.place(*impl_->list.at(i)); }

void OptionTables::read_defaults(Options& options) const {
  if (impl_->defaults != nullptr) impl_->read(*impl_->defaults, options);
}

void OptionTables::read(size_t i, Options& options) const { impl_->read(*impl_->list.at(i), options); }

}  // namespace tandem::options
