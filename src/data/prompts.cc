#include "data/prompts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/message_text.h"
#include "data/messages.h"

namespace tandem::data {
namespace {

using base::Json;

// Checks that a completion's label is there to compare with: an empty one would reward an empty answer. `needed_by` is
// the reward that compares; holds_tests: the label may be a list or an object.
void check_label(const Json* label, const Json& object, const PromptOptions& options, const std::string& needed_by,
                 bool holds_tests, const Place& place) {
  const std::string& key = options.label_key;
  const std::string remedy =
      fmt::format("and {} compares completions with the label - give the line one, or name its key with {}", needed_by,
                  options.label_flag);
  if (label == nullptr) {
    const std::string likely = likely_label_key(object);
    place.fail("", "the key", key, "is missing:", keys_text(object) + ",",
               remedy + (likely.empty() ? "" : " " + likely));
  }
  if (label->is_null()) place.fail(key, key, "is null,", remedy);
  if (label->is_string() && is_blank(label->get_ref<const std::string&>())) place.fail(key, key, "is empty,", remedy);
  if (label->is_structured() && !holds_tests) {
    place.fail(key, key, label->is_array() ? "is a list," : "is an object,", "and", needed_by,
               "compares completions with a text, a number, true or false - write one, or name its key with",
               options.label_flag);
  }
}

Json read_label(const Json& object, const PromptOptions& options, const std::string& rm_type, const Place& place) {
  const Json* const label = find_value(object, options.label_key);
  std::string needed_by = options.label_needed_by;
  bool holds_tests = options.label_holds_tests;
  if (!rm_type.empty()) {
    const auto is_one_of = [&](const std::vector<std::string>& names) {
      return std::ranges::find(names, rm_type) != names.end();
    };
    holds_tests = is_one_of(options.rewards.need_tests);
    needed_by = holds_tests || is_one_of(options.rewards.need_label) ? "the rm_type " + rm_type : "";
  }
  if (!needed_by.empty()) check_label(label, object, options, needed_by, holds_tests, place);
  return label == nullptr ? Json(nullptr) : *label;
}

// Reads "rm_type" of the metadata object without white space around it, as slime does.
std::string read_rm_type(const Json& object, const PromptOptions& options, const Place& place) {
  const LineRewards& rewards = options.rewards;
  if (rewards.names.empty()) return "";
  const Json* const metadata = find_value(object, options.metadata_key);
  const auto found = metadata != nullptr && metadata->is_object() ? metadata->find("rm_type") : Json::const_iterator();
  const bool is_there = metadata != nullptr && metadata->is_object() && found != metadata->end() && !found->is_null();
  if (is_there && !found->is_string()) {
    place.fail("rm_type", "rm_type is", base::with_article(found->type_name()), "- write the name of a reward");
  }
  std::string name = is_there ? found->get<std::string>() : "";
  constexpr const char* kSpace = " \t\r\n";
  name.erase(0, std::min(name.find_first_not_of(kSpace), name.size()));
  name.erase(name.find_last_not_of(kSpace) + 1);
  if (name.empty()) {
    if (!rewards.needed.empty()) place.fail(options.metadata_key, rewards.needed);
    return "";
  }
  if (!rewards.refused.empty()) place.fail("rm_type", "rm_type", base::one_line(name), rewards.refused);
  if (std::ranges::find(rewards.names, name) == rewards.names.end()) {
    place.fail("rm_type", "rm_type", base::one_line(name),
               fmt::format("is none of {}{}", fmt::join(rewards.names, ", "), rewards.hint));
  }
  return name;
}

Json read_metadata(const Json& object, const PromptOptions& options, const Place& place) {
  Json metadata = Json::object();
  // This searches by position and not with the object's own lookup, which is linear: a line may have a hundred thousand
  // keys.
  auto& members = metadata.get_ref<Json::object_t&>();
  std::unordered_map<std::string, size_t> positions;
  const auto set = [&](const std::string& key, const Json& value) {
    const auto [position, added] = positions.try_emplace(key, members.size());
    if (added) {
      members.emplace_back(key, value);
    } else {
      members.data()[position->second].second = value;
    }
  };
  for (const auto& [key, value] : object.items()) {
    const bool taken = key == options.input_key || key == options.label_key || key == options.tool_key;
    if (!taken && key != options.metadata_key) set(key, value);
  }
  const Json* const found = find_value(object, options.metadata_key);
  if (found == nullptr || found->is_null()) return metadata;
  const Json& own = *found;
  if (!own.is_object())
    place.fail(options.metadata_key, options.metadata_key, "is", base::with_article(own.type_name()),
               "- write an object {...}");
  set(options.metadata_key, own);
  for (const auto& [key, value] : own.items()) set(key, value);
  return metadata;
}

PromptRecord read_prompt_record(const PromptOptions& options, const Place& place) {
  const Json object = parse_object(place);
  std::string rm_type = read_rm_type(object, options, place);
  return {.line = place.line,
          .prompt = read_prompt_value(object, options.input_key, place),
          .label = read_label(object, options, rm_type, place),
          .metadata = read_metadata(object, options, place),
          .tools = read_tools(object, options.tool_key, place),
          .rm_type = std::move(rm_type)};
}

}  // namespace

std::string label_text(const Json& label) {
  if (label.is_null()) return "";
  if (label.is_number_float()) {
    // A table has 40 as 40.0 in a column of floats, and no completion would say that. Beyond 2^53 a float stands for
    // several whole numbers.
    constexpr double kMaxWhole = 9007199254740992.0;
    const double number = label.get<double>();
    if (std::abs(number) <= kMaxWhole && number == std::trunc(number)) {
      return std::to_string(static_cast<int64_t>(number));
    }
  }
  return label.is_string() ? label.get<std::string>() : base::dump_json(label);
}

PromptData read_prompts(const PromptOptions& options, const OpenTable& open_parquet) {
  PromptData data;
  LeftOut left_out =
      for_each_row(options.path, {options.input_key, options.label_key, options.metadata_key, options.tool_key},
                   options.skip_bad_lines, open_parquet,
                   [&](const Place& place) { data.records.push_back(read_prompt_record(options, place)); });
  data.num_rows_without_value = left_out.num_rows_without_value;
  data.first_without_value = std::move(left_out.first_without_value);
  data.num_blank_lines = left_out.num_blank_lines;
  data.bad_lines = std::move(left_out.bad_lines);
  return data;
}

}  // namespace tandem::data
