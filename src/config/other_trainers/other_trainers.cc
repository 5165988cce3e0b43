#include "config/other_trainers/other_trainers.h"

#include <fmt/format.h>

#include <regex>
#include <sstream>
#include <string_view>
#include <vector>

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

void declare_other_trainers(base::Options& options) {
  for (const UnsupportedFlag& flag : unsupported_flags())
    options.unsupported(flag.name, flag.reason, words_of(flag.companions));
  for (const OtherName& name : names_of_trl()) options.known_elsewhere(name.name, answer_of("TRL", name));
  for (const OtherName& name : names_of_verl()) options.known_elsewhere(name.name, answer_of("verl", name));
  for (const OtherName& name : names_of_areal()) options.known_elsewhere(name.name, answer_of("AReaL", name));
  for (const OtherName& name : names_of_prime_rl()) options.known_elsewhere(name.name, answer_of("prime-rl", name));
  for (const char* part : {"data", "actor_rollout_ref", "algorithm", "trainer", "reward", "reward_model", "critic"}) {
    options.known_elsewhere(std::string(part) + ".*",
                            "this key of verl has no counterpart that Tandem knows; docs/COMING_FROM.md lists the keys "
                            "that have one");
  }
}

}  // namespace tandem::config
