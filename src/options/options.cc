// Reads the words of a command line into fields. The config file's half is in toml.cc, --help in help.cc, the answers
// to unknown names in unknown_names.cc.
#include "options/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "base/check.h"
#include "base/env.h"
#include "base/json.h"
#include "base/message_text.h"
#include "base/sha256.h"
#include "options/names.h"

namespace tandem::options {

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
      flag.shown = "--" + base::one_line(flag.name);
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

// Returns the file name that a --config flag was given.
std::string value_of(const TypedFlag& flag) {
  TANDEM_USER_CHECK(flag.value || !flag.words.empty(), flag.shown + ": needs a file name");
  return flag.value ? *flag.value : flag.words.front();
}

}  // namespace

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
      for (std::string& word : *words) word = base::shorten_home(word, home_);
    }
    std::string value = words ? fmt::format("{}", fmt::join(*words, " ")) : "unset";
    result[option.name()] = words && option.is_fingerprinted() ? base::fingerprint(option.name(), value) : value;
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

base::Json Options::values() const {
  base::Json result = base::Json::object();
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
    for (std::string& word : words) word = base::expand_home(word, home_);
  }
  option.set(where, words);
}

}  // namespace tandem::options
