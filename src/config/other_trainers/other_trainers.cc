#include "config/other_trainers/other_trainers.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "config/other_trainers/unsupported_flags.h"

namespace tandem::config {

namespace {

// Returns Markdown as a line of a terminal: without backticks, with a page as its path.
std::string plain_text(const std::string& markdown) {
  std::string text = markdown;
  if (text.find("](") != std::string::npos) {
    static const std::regex kLink(R"(\[[^\]]*\]\(([^)]*)\))");
    text = std::regex_replace(text, kLink, "docs/$1");
  }
  std::erase(text, '`');
  return text;
}

std::vector<std::string> words_of(const char* text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

struct Row {
  const char* trainer;
  OtherName name;
};

// Returns the rows that a verb with these options answers with. Where two tables have a name, the first answers.
std::vector<Row> rows_for(const base::Json& options) {
  std::vector<Row> rows;
  std::set<std::string> names_there;
  const auto add = [&](const char* trainer, std::span<const OtherName> names) {
    for (const OtherName& name : names) {
      if (names_there.insert(name.name).second) rows.push_back({trainer, name});
    }
  };
  if (options.contains("preference-loss")) {
    add("TRL", names_of_preferences());
    add("TRL", names_of_sft());
    add("verl", names_of_verl_sft());
  }
  add("TRL", names_of_trl());
  add("verl", names_of_verl());
  add("AReaL", names_of_areal());
  add("prime-rl", names_of_prime_rl());
  return rows;
}

std::string dashed(std::string name) {
  std::ranges::replace(name, '_', '-');
  return name;
}

// Returns the last parts of a key: "actor.optim.lr" has "optim.lr" and "lr".
std::vector<std::string> last_parts(const std::string& key) {
  std::vector<std::string> parts;
  for (size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1))
    parts.push_back(key.substr(dot + 1));
  return parts;
}

// Returns the flags that a text names, without "--".
std::set<std::string> flags_in(const std::string& text) {
  std::set<std::string> flags;
  size_t end = 0;
  for (size_t at = text.find("--"); at != std::string::npos; at = text.find("--", end)) {
    end = std::min(text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-", at), text.size());
    flags.insert(text.substr(at + 2, end - at - 2));
  }
  return flags;
}

bool has_one_of(const base::Json& ours, const std::set<std::string>& flags) {
  return std::ranges::any_of(flags, [&](const std::string& flag) { return ours.contains(flag); });
}

bool is_family(const UnsupportedFlag& flag) { return std::string_view(flag.name).ends_with('*'); }

// Declares a name of a table as a refused flag, if a family of refused flags ("vllm-*") would take it for its own. The
// name of an option of Tandem stays in its family: its row says nothing to a verb that lacks the option.
void declare_if_hidden(const std::string& name, const std::string& answer, const base::Json& ours,
                       options::Options& options) {
  const UnsupportedFlag* const family = find_unsupported_flag(name);
  if (family == nullptr || !is_family(*family)) return;
  const std::set<std::string> flags = flags_in(answer);
  if (flags.contains(name)) return;
  const bool is_of_another_command = !flags.empty() && !has_one_of(ours, flags);
  options.unsupported(name, answer + (is_of_another_command ? " (a flag that this command does not have)" : ""));
}

// Declares the hidden names of all tables, whole ones before the last parts of keys, as an unknown name is looked up.
void declare_hidden_names(const std::vector<Row>& rows, const base::Json& ours, options::Options& options) {
  std::map<std::string, int> num_keys;  // the keys that end in these parts
  for (const auto& [trainer, name] : rows) {
    const std::string whole = dashed(name.name);
    declare_if_hidden(whole, answer_of(trainer, name), ours, options);
    for (const std::string& parts : last_parts(whole)) ++num_keys[parts];
  }
  for (const auto& [trainer, name] : rows) {
    for (const std::string& parts : last_parts(dashed(name.name))) {
      if (num_keys[parts] == 1) declare_if_hidden(parts, answer_of(trainer, name), ours, options);
    }
  }
}

}  // namespace

std::string answer_of(const char* trainer, const OtherName& name) {
  const bool has_flag = std::string_view(name.here).find("--") != std::string_view::npos;
  const bool has_none = std::string_view(name.here) == "none";
  std::string answer = fmt::format("{}'s {} ", trainer, name.name);
  answer +=
      has_none ? "has no counterpart here" : fmt::format("is {}{}", plain_text(name.here), has_flag ? " here" : "");
  if (!std::string_view(name.remark).empty()) answer += "; " + plain_text(name.remark);
  return answer;
}

void declare_other_trainers(options::Options& options) {
  const base::Json ours = options.values();
  const std::vector<Row> rows = rows_for(ours);
  declare_hidden_names(rows, ours, options);  // the first row that holds for a flag answers
  const bool has_preferences = ours.contains("preference-loss");
  const auto is_of_preferences = [&](const UnsupportedFlag& flag) {
    const auto is_it = [&](const OtherName& name) { return dashed(name.name) == flag.name; };
    return has_preferences && std::ranges::any_of(names_of_preferences(), is_it);
  };
  for (const UnsupportedFlag& flag : unsupported_flags()) {
    if (!is_of_preferences(flag)) options.unsupported(flag.name, flag.reason, words_of(flag.companions));
  }
  for (const auto& [trainer, name] : rows) {
    const std::string answer = answer_of(trainer, name);
    const std::set<std::string> flags = flags_in(answer);
    // The name is that of an option which this verb lacks: then it is no other trainer's word.
    if (flags.contains(dashed(name.name)) && !has_one_of(ours, flags)) continue;
    options.known_elsewhere(name.name, answer);
  }
  for (const char* part : {"data", "actor_rollout_ref", "algorithm", "trainer", "reward", "reward_model", "critic"}) {
    options.known_elsewhere(std::string(part) + ".*",
                            "this key of verl has no counterpart that Tandem knows; docs/COMING_FROM.md lists the keys "
                            "that have one");
  }
}

}  // namespace tandem::config
