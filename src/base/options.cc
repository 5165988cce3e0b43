// Sets fields from flags: types, ranges and names. The config file's half is in options_toml.cc, --help in
// options_help.cc.
#include "base/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <type_traits>

#include "base/byte_count.h"
#include "base/check.h"
#include "base/env.h"
#include "base/json.h"
#include "base/message_text.h"
#include "base/sha256.h"
#include "base/utf8.h"

namespace tandem::base {

// Holds a flag of the command line and the words up to the next flag.
struct TypedFlag {
  std::string name;                  // without "--"
  std::string shown;                 // "--" and the name, for messages
  std::optional<std::string> value;  // text after "="
  std::vector<std::string> words;    // words after the flag
  std::vector<std::string> typed;    // the flag and its words as typed
};

namespace {

// Returns whether the word was meant as the value of a switch.
bool is_switch_value(std::string_view word) {
  return word == "true" || word == "false" || word == "True" || word == "False" || word == "1" || word == "0";
}

template <typename T>
struct Traits {
  using Element = T;
  static constexpr bool kIsList = false;
};
template <typename T>
struct Traits<std::optional<T>> : Traits<T> {};
template <typename T>
struct Traits<std::vector<T>> {
  using Element = T;
  static constexpr bool kIsList = true;
};

template <typename T>
constexpr OptionKind kKindOf = std::is_same_v<T, bool>      ? OptionKind::kBool
                               : std::is_same_v<T, int64_t> ? OptionKind::kInteger
                               : std::is_same_v<T, double>  ? OptionKind::kNumber
                                                            : OptionKind::kText;

std::string to_word(bool value) { return value ? "true" : "false"; }
std::string to_word(const std::string& value) { return value; }
std::string to_word(int64_t value) { return std::to_string(value); }
std::string to_word(double value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};  // shortest digits that read back
}

// Returns the user's word as a message shows it: in a file any string can hold line breaks.
std::string shown(const std::string& word) { return "'" + one_line(word) + "'"; }

template <typename Number>
Number parse_number(const std::string& where, const std::string& word, const char* expected) {
  Number value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  TANDEM_USER_CHECK(error != std::errc::result_out_of_range, where + ": " + shown(word) + " is too large or too small");
  const bool whole = error == std::errc() && end == word.data() + word.size();
  TANDEM_USER_CHECK(whole, where + ": expects", expected + std::string(", not ") + shown(word));
  return value;
}

void parse_word(const std::string& where, const std::string& word, int64_t& value) {
  value = parse_number<int64_t>(where, word, "a whole number");
}
void parse_word(const std::string& where, const std::string& word, double& value) {
  value = parse_number<double>(where, word, "a number");
}
// Config files, checkpoints and reward functions get the value as text.
void parse_word(const std::string& where, const std::string& word, std::string& value) {
  TANDEM_USER_CHECK(is_utf8(word), where + ": " + shown(word) + " is no UTF-8 text; write it in UTF-8");
  value = word;
}
void parse_word(const std::string& where, const std::string& word, bool& value) {
  TANDEM_USER_CHECK(word == "true" || word == "false", where + ": expects true or false, not " + shown(word));
  value = word == "true";
}

// Returns a byte count in digits, without its unit. A word that is no byte count stays as it is if it is a number: then
// its range is the mistake.
std::string whole_bytes(const std::string& where, const std::string& word) {
  if (const std::optional<int64_t> bytes = parse_byte_count(word)) return std::to_string(*bytes);
  const bool is_number = !word.empty() && word.find_first_not_of("-0123456789") == std::string::npos;
  TANDEM_USER_CHECK(is_number, where + ": expects bytes, such as 1073741824 or 1GiB, not " + shown(word));
  return word;
}

// Returns the Levenshtein distance, computed one row at a time; `limit` if it is not below that.
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

// Returns whether a word is a flag and not a value: "-1" and "-" are values.
bool is_flag(const std::string& word) {
  return word.size() > 2 && word.starts_with("--") && (std::isalpha(static_cast<unsigned char>(word[2])) != 0);
}

// `positional` is the option that words before the first flag belong to; if it is "", there is none and they are added
// to `unexpected`.
std::vector<TypedFlag> split_flags(const std::vector<std::string>& arguments, const std::string& positional,
                                   std::vector<std::string>& unexpected) {
  std::vector<TypedFlag> flags;
  for (const std::string& word : arguments) {
    if (is_flag(word)) {
      const size_t equals = word.find('=');
      TypedFlag& flag = flags.emplace_back();
      flag.name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
      flag.shown = "--" + one_line(flag.name);
      if (equals != std::string::npos) flag.value = word.substr(equals + 1);
    } else if (flags.empty() && !positional.empty()) {
      TypedFlag& flag = flags.emplace_back();
      flag.name = positional;
      flag.shown = "--" + positional;
      flag.words = {word};
    } else if (flags.empty()) {
      unexpected.push_back(word);
      continue;
    } else {
      flags.back().words.push_back(word);
    }
    flags.back().typed.push_back(word);
  }
  return flags;
}

// Returns whether `name` matches a pattern, which may end in '*' to stand for every name with that beginning.
bool matches(std::string_view pattern, std::string_view name) {
  return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1)) : name == pattern;
}

// Returns whether a text names "--NAME", and not just a longer flag with the same beginning.
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

// Returns the file name that a --config flag was given.
std::string value_of(const TypedFlag& flag) {
  TANDEM_USER_CHECK(flag.value || !flag.words.empty(), flag.shown + ": needs a file name");
  return flag.value ? *flag.value : flag.words.front();
}

}  // namespace

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

Option::Option(OptionField field, std::string name, std::string group, std::string help)
    : field_(field), name_(std::move(name)), group_(std::move(group)), help_(std::move(help)) {}

Option& Option::at_least(double minimum) {
  minimum_ = minimum;
  return *this;
}

Option& Option::at_most(double maximum) {
  maximum_ = maximum;
  return *this;
}

Option& Option::greater_than(double bound) {
  lower_bound_ = bound;
  return *this;
}

Option& Option::less_than(double bound) {
  upper_bound_ = bound;
  return *this;
}

Option& Option::finite() {
  finite_ = true;
  return *this;
}

Option& Option::one_of(std::vector<std::string> choices) {
  TANDEM_CHECK(kind() == OptionKind::kText, name_);
  choices_ = std::move(choices);
  return *this;
}

Option& Option::one_of(std::span<const std::string_view> choices) {
  return one_of(std::vector<std::string>(choices.begin(), choices.end()));
}

Option& Option::or_zero() {
  may_be_zero_ = true;
  return *this;
}

Option& Option::or_empty() {
  may_be_empty_ = true;
  return *this;
}

Option& Option::unsupported(std::vector<std::string> values, std::string reason) {
  unsupported_.push_back({std::move(values), std::move(reason)});
  return *this;
}

Option& Option::fingerprinted() {
  fingerprinted_ = true;
  return *this;
}

Option& Option::required(bool is_required) {
  required_ = is_required;
  has_no_default_ = has_no_default_ || is_required;
  return *this;
}

Option& Option::default_was_new() {
  default_is_new_ = true;
  return *this;
}

Option& Option::remembered_as(std::string value, const bool& unless_is_on) {
  idle_value_ = std::move(value);
  condition_ = &unless_is_on;
  return *this;
}

Option& Option::needed_by(const bool& is_on, std::string switch_name, std::string remedy) {
  needing_ = &is_on;
  needing_name_ = std::move(switch_name);
  needing_remedy_ = std::move(remedy);
  return *this;
}

Option& Option::used_if(std::function<bool()> is_used, std::string what) {
  is_used_ = std::move(is_used);
  needs_ = std::move(what);
  return *this;
}

std::string Option::idle_text() const {
  if (!mentioned_ || !is_used_ || is_used_()) return "";
  return fmt::format("--{}: does nothing without {}", name_, needs_);
}

std::string Option::missing_text() const {
  if (needing_ == nullptr || !*needing_ || given_ || mentioned_) return "";
  return fmt::format("--{}: needs --{}; {}", needing_name_, name_, needing_remedy_);
}

Option& Option::one_or_more() {
  TANDEM_CHECK(is_list(), name_);
  may_be_single_ = true;
  return *this;
}

Option& Option::path() {
  TANDEM_CHECK(kind() == OptionKind::kText, name_);
  path_ = true;
  return *this;
}

Option& Option::bytes() {
  TANDEM_CHECK(kind() == OptionKind::kInteger, name_);
  bytes_ = true;
  return *this;
}

Option& Option::positional() {
  positional_ = true;
  return *this;
}

OptionKind Option::kind() const {
  return std::visit(
      [](const auto* field) {
        return kKindOf<typename Traits<std::remove_const_t<std::remove_pointer_t<decltype(field)>>>::Element>;
      },
      field_);
}

bool Option::is_list() const {
  return std::visit(
      [](const auto* field) { return Traits<std::remove_const_t<std::remove_pointer_t<decltype(field)>>>::kIsList; },
      field_);
}

Option& Option::does_not_affect_results() {
  may_change_numbers_ = false;
  return *this;
}

Option& Option::of_one_command() {
  of_one_command_ = true;
  return *this;
}

std::optional<std::vector<std::string>> Option::words() const {
  return std::visit(
      [this](const auto* field) -> std::optional<std::vector<std::string>> {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(field)>>;
        if constexpr (Traits<T>::kIsList) {
          if (may_be_single_ && field->empty()) return std::nullopt;
          std::vector<std::string> words;
          for (const auto& element : *field) words.push_back(to_word(element));
          return words;
        } else if constexpr (std::is_same_v<T, typename Traits<T>::Element>) {
          return {{to_word(*field)}};
        } else {
          if (!field->has_value()) return std::nullopt;
          return {{to_word(**field)}};
        }
      },
      field_);
}

Json Option::value() const {
  return std::visit(
      [this](const auto* field) -> Json {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(field)>>;
        if constexpr (Traits<T>::kIsList) {
          if (may_be_single_ && field->size() < 2) return field->empty() ? Json(nullptr) : Json(field->front());
        }
        if constexpr (Traits<T>::kIsList || std::is_same_v<T, typename Traits<T>::Element>) {
          return *field;
        } else {
          return field->has_value() ? Json(**field) : Json(nullptr);
        }
      },
      field_);
}

void Option::set(const std::string& where, const std::vector<std::string>& words) {
  TANDEM_USER_CHECK(is_list() || words.size() == 1, where + ": expects one value, not", words.size());
  std::visit(
      [&](auto* field) {
        using T = std::remove_pointer_t<decltype(field)>;
        using Element = typename Traits<T>::Element;
        const auto read = [&](const std::string& typed) {
          const std::string word = bytes_ ? whole_bytes(where, typed) : typed;
          Element value{};
          parse_word(where, word, value);
          if constexpr (std::is_same_v<Element, std::string>) {
            check_choice(where, word);
          } else if constexpr (!std::is_same_v<Element, bool>) {
            check_range(where, word, static_cast<double>(value));
          }
          return value;
        };
        if constexpr (Traits<T>::kIsList) {
          T values;
          for (const std::string& word : words) values.push_back(read(word));
          *field = std::move(values);
        } else {
          *field = read(words.front());
        }
      },
      field_);
  given_ = true;
}

void Option::check_range(const std::string& where, const std::string& word, double value) const {
  TANDEM_USER_CHECK(!std::isnan(value), where + ": must be a number, not", one_line(word));
  if (may_be_zero_ && value == 0.0) return;
  TANDEM_USER_CHECK(!minimum_ || value >= *minimum_, where + ": must be", may_be_zero_ ? "0 or at least" : "at least",
                    to_word(*minimum_) + ", not", one_line(word));
  TANDEM_USER_CHECK(!maximum_ || value <= *maximum_, where + ": must be at most", to_word(*maximum_) + ", not",
                    one_line(word));
  TANDEM_USER_CHECK(!lower_bound_ || value > *lower_bound_, where + ": must be greater than",
                    to_word(*lower_bound_) + ", not", one_line(word));
  TANDEM_USER_CHECK(!upper_bound_ || value < *upper_bound_, where + ": must be less than",
                    to_word(*upper_bound_) + ", not", one_line(word));
  TANDEM_USER_CHECK(!finite_ || std::isfinite(value), where + ": must be a finite number, not", one_line(word));
}

void Option::check_choice(const std::string& where, const std::string& word) const {
  if (choices_.empty() || std::find(choices_.begin(), choices_.end(), word) != choices_.end()) return;
  if (may_be_empty_ && word.empty()) return;
  const auto is_unsupported = [&](const std::string& pattern) { return matches(pattern, word); };
  for (const auto& [values, reason] : unsupported_) {
    TANDEM_USER_CHECK(std::ranges::none_of(values, is_unsupported),
                      fmt::format("{}: {} {}", where, shown(word), reason));
  }
  const auto near = nearest_name(word, choices_);
  throw UserError(fmt::format("{}: {} is none of {}{}", where, shown(word), fmt::join(choices_, ", "),
                              near ? "; did you mean " + *near + "?" : ""));
}

std::vector<std::string> Options::idle_texts() const {
  std::vector<std::string> texts;
  for (const Option& option : options_) {
    if (std::string text = option.idle_text(); !text.empty()) texts.push_back(std::move(text));
  }
  return texts;
}

std::map<std::string, std::string> Options::result_options() const {
  std::map<std::string, std::string> result;
  for (const Option& option : options_) {
    if (!option.may_change_numbers()) continue;
    if (const std::string* const remembered = option.remembered()) {
      result[option.name()] = *remembered;
      continue;
    }
    auto words = option.words();
    if (words && option.is_path()) {
      for (std::string& word : *words) word = shorten_home(word, home_);
    }
    std::string value = words ? fmt::format("{}", fmt::join(*words, " ")) : "unset";
    result[option.name()] = words && option.is_fingerprinted() ? fingerprint(option.name(), value) : value;
  }
  return result;
}

std::map<std::string, std::string> Options::values_where_absent() const {
  std::map<std::string, std::string> result = result_options();
  for (const Option& option : options_) {
    TANDEM_CHECK(!option.is_given(), option.name(), "was read before its default was asked for");
    if (option.is_default_new()) result.erase(option.name());
  }
  return result;
}

Json Options::values() const {
  Json result = Json::object();
  for (const Option& option : options_) result[option.name()] = option.value();
  return result;
}

Option& Options::add(Option option) {
  TANDEM_CHECK(find(option.name()) == nullptr, option.name(), "is declared twice");
  return options_.emplace_back(std::move(option));
}

void Options::unsupported(const std::string& name, const std::string& reason,
                          const std::vector<std::string>& companions) {
  unsupported_.push_back({name, reason, companions});
}

void Options::known_elsewhere(const std::string& name, const std::string& answer) {
  elsewhere_.push_back({name, answer});
}

void Options::known_to_other_commands(std::function<std::string(const std::string& name)> answer) {
  answer_of_others_ = std::move(answer);
}

std::string Options::text_of_others(std::string_view name) const {
  const std::string wanted = dashed(std::string(name));
  const auto is_it = [&](const Option& option) { return option.name() == wanted || "no-" + option.name() == wanted; };
  return answer_of_others_ && std::ranges::none_of(options_, is_it) ? answer_of_others_(wanted) : "";
}

std::vector<std::string> Options::groups() const {
  std::vector<std::string> groups;
  for (const Option& option : options_) {
    if (std::ranges::find(groups, option.group()) == groups.end()) groups.push_back(option.group());
  }
  return groups;
}

Option* Options::find(std::string_view name) {
  const auto at = std::find_if(options_.begin(), options_.end(), [&](const Option& o) { return o.name() == name; });
  return at == options_.end() ? nullptr : &*at;
}

void Options::require_only(const std::vector<std::string>& names) {
  for (Option& option : options_) option.required(std::find(names.begin(), names.end(), option.name()) != names.end());
}

ParsedAction Options::parse(const std::vector<std::string>& arguments) {
  if (std::ranges::any_of(arguments, [](const auto& word) { return word == "--help" || word == "-h"; }))
    return ParsedAction::kHelp;
  OptionMistakes mistakes;
  const auto positional = std::ranges::find_if(options_, &Option::is_positional);
  std::vector<std::string> unexpected;
  const std::vector<TypedFlag> flags =
      split_flags(arguments, positional == options_.end() ? "" : positional->name(), unexpected);
  for (const std::string& word : unexpected) mistakes.add(unexpected_text(word));
  ParsedAction action = ParsedAction::kRun;
  for (const TypedFlag& flag : flags) {
    if (flag.name == "print-config") action = ParsedAction::kPrintConfig;
    if (flag.name == "config") read_config_file(value_of(flag), mistakes);
  }
  bool has_refused = false;
  std::optional<TypedFlag> all_positional;  // with the words of all places
  for (const TypedFlag& flag : flags) {
    if (const Unsupported* const row = find_unsupported(flag.name)) {
      mistakes.refuse(flag.shown, row->reason);
      has_refused = true;
      continue;
    }
    try {
      const bool is_positional = positional != options_.end() && flag.name == positional->name();
      const size_t num_used = is_positional ? 0 : read_flag(flag);
      if (!is_positional && num_used == flag.words.size()) continue;
      if (positional == options_.end()) {
        const std::string name = flag.name.starts_with("no-") ? flag.name.substr(3) : flag.name;
        const Option* const option = find(name);
        const bool is_switch = option != nullptr && option->kind() == OptionKind::kBool;
        const std::string& word = flag.words[num_used];
        TANDEM_USER_CHECK(
            !is_switch || !is_switch_value(word),
            fmt::format("{}: is a switch, without a value: --{} or --{}", flag.shown, name, "no-" + name));
        throw UserError(unexpected_text(word));
      }
      if (!all_positional) {
        all_positional.emplace();
        all_positional->name = positional->name();
        all_positional->shown = "--" + positional->name();
      }
      std::vector<std::string>& words = all_positional->words;
      if (is_positional && flag.value) words.push_back(*flag.value);
      words.insert(words.end(), flag.words.begin() + static_cast<std::ptrdiff_t>(num_used), flag.words.end());
    } catch (const UserError& error) {
      mistakes.add(error.what());
    }
  }
  try {
    if (all_positional) read_flag(*all_positional);
  } catch (const UserError& error) {
    mistakes.add(error.what());
  }
  for (const Option& option : options_) {
    const bool is_missing = option.is_required() && !option.is_given() && !option.is_mentioned();
    if (is_missing && action != ParsedAction::kPrintConfig)
      mistakes.add("--" + option.name() + ": is required: " + option.help());
    if (const std::string missing = option.missing_text(); !missing.empty()) mistakes.add(missing);
  }
  mistakes.raise(has_refused ? remaining_words(flags) : std::vector<std::string>{});
  return action;
}

std::vector<std::string> Options::remaining_words(const std::vector<TypedFlag>& flags) const {
  std::vector<std::string> companions, words;
  for (const TypedFlag& flag : flags) {
    const Unsupported* const row = find_unsupported(flag.name);
    if (row != nullptr) companions.insert(companions.end(), row->companions.begin(), row->companions.end());
  }
  for (const TypedFlag& flag : flags) {
    const bool is_companion = std::ranges::find(companions, flag.name) != companions.end();
    if (find_unsupported(flag.name) != nullptr || is_companion) continue;
    words.insert(words.end(), flag.typed.begin(), flag.typed.end());
  }
  return words;
}

size_t Options::read_flag(const TypedFlag& flag) {
  const bool is_alone = flag.name == "help" || flag.name == "print-config";
  TANDEM_USER_CHECK(!is_alone || !flag.value, flag.shown + ": takes no value");
  size_t num_used = 0;  // used words after the flag
  if (flag.name == "config" || flag.name == "print-config") {
    num_used = flag.name == "config" && !flag.value ? 1 : 0;
  } else {
    Option* option = find(flag.name);
    std::vector<std::string> values;
    if (option == nullptr && flag.name.starts_with("no-")) {
      option = find(std::string_view(flag.name).substr(3));
      if (option != nullptr && option->kind() != OptionKind::kBool) option = nullptr;
      values = {"false"};
    }
    if (option == nullptr) throw UserError(unknown_text(flag.shown, flag.name));
    option->set_mentioned();
    TANDEM_USER_CHECK(values.empty() || !flag.value, flag.shown + ": takes no value");
    if (flag.value) {
      values = {*flag.value};
      if (option->is_list() && flag.value->empty()) values.clear();  // --name= is an empty list
    } else if (values.empty() && option->kind() == OptionKind::kBool) {
      values = {"true"};
    } else if (values.empty()) {
      num_used = option->is_list() ? flag.words.size() : std::min<size_t>(1, flag.words.size());
      values.assign(flag.words.begin(), flag.words.begin() + static_cast<std::ptrdiff_t>(num_used));
      TANDEM_USER_CHECK(!values.empty(), flag.shown + ": needs a value; one that begins with -- is written",
                        flag.shown + "=VALUE");
    }
    const bool has_empty = std::ranges::any_of(values, &std::string::empty);
    TANDEM_USER_CHECK(!option->is_path() || !has_empty, flag.shown + ": is empty; give a path, or leave the flag out");
    set(*option, flag.shown, std::move(values));
  }
  return num_used;
}

void Options::set(Option& option, const std::string& where, std::vector<std::string> words) const {
  if (option.is_path()) {
    for (std::string& word : words) word = expand_home(word, home_);
  }
  option.set(where, words);
}

const Options::Unsupported* Options::find_unsupported(std::string_view name) const {
  const auto is_option = [&](const Option& option) {
    return option.name() == name || (option.kind() == OptionKind::kBool && name == "no-" + option.name());
  };
  if (std::ranges::any_of(options_, is_option)) return nullptr;
  // A name that is a typo or two from an option is not taken for one of a whole family of flags.
  constexpr size_t kNoTypo = 3;
  const auto is_meant = [&](const Option& option) { return edit_distance(name, option.name(), kNoTypo) < kNoTypo; };
  for (const Unsupported& row : unsupported_) {
    if (!matches(row.name, name) && name != "no-" + row.name) continue;
    if (!row.name.ends_with('*')) return &row;
    return !text_of_others(name).empty() || std::ranges::any_of(options_, is_meant) ? nullptr : &row;
  }
  return nullptr;
}

std::string Options::unexpected_text(const std::string& word) {
  // Hydra's users write "data.train_files=x", or with + before it to add a key.
  const std::string_view text = word;
  const size_t begin = std::min(text.find_first_not_of("+~"), text.size());
  const std::string answer = elsewhere_text(shown(word), text.substr(begin, text.find('=') - begin));
  if (!answer.empty()) return answer;
  const bool is_key = !elsewhere_.empty() && word.find('=') != std::string::npos;
  return "unexpected argument " + shown(word) + ": every option begins with -- and a name" +
         (is_key ? "; docs/COMING_FROM.md lists keys of verl" : "");
}

std::string Options::elsewhere_text(const std::string& where, std::string_view name) {
  std::string wanted(name);
  std::ranges::replace(wanted, '-', '_');
  const auto is_it = [&](const Elsewhere& row) { return row.name == wanted; };
  const auto ends_so = [&](const Elsewhere& row) { return row.name.ends_with("." + wanted); };
  auto row = std::ranges::find_if(elsewhere_, is_it);
  if (row == elsewhere_.end() && !wanted.empty() && std::ranges::count_if(elsewhere_, ends_so) == 1)
    row = std::ranges::find_if(elsewhere_, ends_so);
  const auto begins_so = [&](const Elsewhere& one) { return one.name.ends_with('*') && matches(one.name, wanted); };
  if (row == elsewhere_.end()) row = std::ranges::find_if(elsewhere_, begins_so);
  if (row == elsewhere_.end()) return "";
  bool has_flag = false;
  for (Option& option : options_) {
    if (!names_flag(row->answer, option.name())) continue;
    option.set_mentioned();
    has_flag = true;
  }
  // The name is the same in both programs: then it is no other trainer's word, but a flag of another command.
  if (!has_flag && names_flag(row->answer, dashed(wanted))) return "";
  const bool is_of_another_command = !has_flag && row->answer.find("--") != std::string::npos;
  return where + ": " + row->answer + (is_of_another_command ? " (a flag that this command does not have)" : "");
}

std::string Options::unknown_text(const std::string& where, const std::string& name) {
  const std::string of_others = text_of_others(name);
  const std::string as_it_is = dashed(name) == name ? "" : fmt::format("--{} ", one_line(dashed(name)));
  if (!of_others.empty()) return fmt::format("{}: {}{}", where, as_it_is, of_others);
  if (const std::string answer = elsewhere_text(where, name); !answer.empty()) return answer;
  const bool is_typed = where.starts_with("--");  // else it is a key of a file
  const std::array<const char*, 3> own = {"config", "print-config", "help"};
  if (!is_typed && std::ranges::find(own, name) != own.end())
    return where + ": is of the command line alone; leave it out of the file";
  std::vector<std::string> names;
  for (const Option& option : options_) {
    names.push_back(option.name());
    const std::string off = "no-" + option.name();
    if (option.kind() != OptionKind::kBool) continue;
    if (!is_typed && off == name)
      return fmt::format("{}: is a flag of the command line; write {} = false", where, option.name());
    if (is_typed) names.push_back(off);
  }
  if (is_typed) names.insert(names.end(), own.begin(), own.end());
  const auto near = nearest_name(name, names);
  if (Option* const meant = near ? find(*near) : nullptr) meant->set_mentioned();
  const std::string dashes = is_typed ? "--" : "";
  if (near) return where + ": unknown option; did you mean " + dashes + *near + "?";
  std::vector<std::string> others;
  for (const Elsewhere& row : elsewhere_) {
    if (!row.name.ends_with('*')) others.push_back(dashed(row.name));
  }
  const auto other = nearest_name(name, others);
  if (other) return elsewhere_text(where + ": unknown option; did you mean " + dashes + *other + "? Then", *other);
  return where + ": unknown option; --help lists what there is" +
         (elsewhere_.empty() ? "" : ", docs/COMING_FROM.md what other trainers call it");
}

}  // namespace tandem::base
