// What Options answers to a name that it does not have: refused flags, other trainers' names, typos.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/message_text.h"
#include "options/names.h"
#include "options/options.h"

namespace tandem::options {

std::string Options::text_of_others(std::string_view name) const {
  const std::string wanted = dashed(std::string(name));
  const auto is_it = [&](const Option& option) { return option.name() == wanted || "no-" + option.name() == wanted; };
  return answer_of_others_ && std::ranges::none_of(options_, is_it) ? answer_of_others_(wanted) : "";
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
  const std::string as_it_is = dashed(name) == name ? "" : fmt::format("--{} ", base::one_line(dashed(name)));
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

}  // namespace tandem::options
