#include "rl/prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "base/check.h"
#include "base/files.h"
#include "base/message_text.h"

namespace tandem::rl {
namespace {

using base::Json;

constexpr int64_t kMaxFileBytes = int64_t{8} << 30;
constexpr size_t kMaxMessages = 10;

struct Line {
  int64_t number = 0;
  std::string_view text;
};

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\f\v") == std::string_view::npos; }

std::string_view without_marks(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (text.ends_with('\r')) text.remove_suffix(1);
  return text;
}

// The rows of a file: its lines without the blank ones.
std::vector<Line> split_rows(std::string_view text, int64_t& num_blank_lines) {
  std::vector<Line> rows;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const std::string_view line = without_marks(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (is_blank(line)) {
      ++num_blank_lines;
    } else {
      rows.push_back({number, line});
    }
  }
  return rows;
}

// Python's rows[begin:end].
std::vector<Line> slice_rows(std::vector<Line> rows, const DataPath& path) {
  const auto size = static_cast<int64_t>(rows.size());
  const auto bound = [size](int64_t index) { return std::clamp<int64_t>(index < 0 ? index + size : index, 0, size); };
  const int64_t begin = path.has_begin ? bound(path.begin) : 0;
  const int64_t end = path.has_end ? bound(path.end) : size;
  if (begin >= end) return {};
  return {rows.begin() + begin, rows.begin() + end};
}

// One line being read, for messages with its place.
struct Place {
  const std::string& file;
  const Line& line;

  // Where `key` stands in the line; the line's start when it does not. Good enough to find it by eye.
  int64_t column(const std::string& key) const {
    const size_t at = key.empty() ? std::string_view::npos : line.text.find("\"" + key + "\"");
    if (at == std::string_view::npos) return 1;
    const auto is_start = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; };
    return 1 + std::count_if(line.text.begin(), line.text.begin() + static_cast<std::ptrdiff_t>(at), is_start);
  }

  // The column of the innermost part of `key` that the line has.
  int64_t column_of_path(const std::string& key) const {
    const size_t dot = key.rfind('.');
    const bool is_here = line.text.find("\"" + key + "\"") != std::string_view::npos;
    return column(is_here || dot == std::string::npos ? key : key.substr(dot + 1));
  }

  template <typename... Values>
  [[noreturn]] void fail(const std::string& key, const Values&... what) const {
    throw UserError(file + ":" + std::to_string(line.number) + ":" + std::to_string(column_of_path(key)) + ": " +
                    base::join_message(what...));
  }
};

Json parse_object(const Place& place) {
  Json object = base::parse_json(place.line.text, place.file, place.line.number);
  if (!object.is_object())
    place.fail("", "the line is a JSON", object.type_name(), "- write one object {...} per line");
  return object;
}

// A list of {"role": text, "content": text}; an assistant's message with tool calls may have no content.
void check_messages(const Json& messages, const std::string& key, const Place& place) {
  if (messages.empty()) place.fail(key, "the message list is empty - give at least one message, or delete the line");
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    const std::string which = "message " + std::to_string(i + 1);
    if (!message.is_object()) place.fail(key, which, "is no object - write {\"role\": ..., \"content\": ...}");
    if (!message.contains("role") || !message["role"].is_string()) {
      place.fail(key, which, "has no role - add \"role\": \"user\" or another string");
    }
    const bool has_content = message.contains("content") && message["content"].is_string();
    const bool has_no_text = !message.contains("content") || message["content"].is_null();
    if (!has_content && !(has_no_text && message.contains("tool_calls"))) {
      place.fail(key, which, "has no text - add \"content\": \"...\" (only text is supported)");
    }
  }
}

// What `key` names: the member of that very name, else along the dots of a path; nullptr where there is none.
const Json* find_value(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  if (const auto found = object.find(key); found != object.end()) return &*found;
  const size_t dot = key.find('.');
  if (dot == std::string_view::npos) return nullptr;
  const auto found = object.find(key.substr(0, dot));
  return found == object.end() ? nullptr : find_value(*found, key.substr(dot + 1));
}

Json read_prompt_value(const Json& object, const std::string& key, const Place& place) {
  const Json* const found = find_value(object, key);
  if (found == nullptr)
    place.fail("", "the key", key, "is missing - add it, or name the prompt's key with --input-key");
  const Json& prompt = *found;
  if (prompt.is_array()) {
    check_messages(prompt, key, place);
  } else if (!prompt.is_string()) {
    place.fail(key, key, "is", base::with_article(prompt.type_name()), "- write a string or a list of messages");
  } else if (prompt.get_ref<const std::string&>().empty()) {
    place.fail(key, key, "is empty - write a prompt, or delete the line");
  }
  return prompt;
}

bool is_blank_text(const Json& value) { return value.is_string() && is_blank(value.get_ref<const std::string&>()); }

// Completions that are compared with a label need one: an empty label would pay for saying nothing.
void check_label(const Json* label, const PromptOptions& options, const Place& place) {
  const std::string& key = options.label_key;
  const std::string remedy =
      fmt::format("and {} compares completions with the label - give the line one, or name its key with {}",
                  options.label_needed_by, options.label_flag);
  if (label == nullptr) place.fail("", "the key", key, "is missing,", remedy);
  if (label->is_null()) place.fail(key, key, "is null,", remedy);
  if (is_blank_text(*label)) place.fail(key, key, "is empty,", remedy);
  if (label->is_structured()) {
    place.fail(key, key, label->is_array() ? "is a list," : "is an object,", "and", options.label_needed_by,
               "compares completions with a text, a number, true or false - write one, or name its key with",
               options.label_flag);
  }
}

Json read_label(const Json& object, const PromptOptions& options, const Place& place) {
  const Json* const label = find_value(object, options.label_key);
  if (!options.label_needed_by.empty()) check_label(label, options, place);
  return label == nullptr ? Json(nullptr) : *label;
}

Json read_tools(const Json& object, const std::string& key, const Place& place) {
  const Json* const tools = find_value(object, key);
  if (tools == nullptr || tools->is_null()) return nullptr;
  if (!tools->is_array()) place.fail(key, key, "is", base::with_article(tools->type_name()), "- write a list of tools");
  return *tools;
}

Json read_metadata(const Json& object, const PromptOptions& options, const Place& place) {
  Json metadata = Json::object();
  // By position, not by the object's own lookup: that is linear, and a line may have a hundred thousand keys.
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
  return {.line = place.line.number,
          .prompt = read_prompt_value(object, options.input_key, place),
          .label = read_label(object, options, place),
          .metadata = read_metadata(object, options, place),
          .tools = read_tools(object, options.tool_key, place)};
}

std::string read_response(const Json& object, const std::string& key, const Place& place) {
  if (!object.contains(key)) place.fail("", "the key", key, "is missing - add the text to learn, or \"messages\"");
  if (!object[key].is_string()) place.fail(key, key, "is a", object[key].type_name(), "- write a string");
  return object[key];
}

SftRecord read_sft_record(const SftOptions& options, const Place& place) {
  const Json object = parse_object(place);
  SftRecord record{
      .line = place.line.number, .prompt = {}, .response = {}, .tools = read_tools(object, options.tool_key, place)};
  const std::string& key = options.messages_key;
  if (!object.contains(key)) {
    record.prompt = read_prompt_value(object, options.prompt_key, place);
    record.response = read_response(object, options.response_key, place);
    return record;
  }
  Json messages = object[key];
  if (!messages.is_array()) place.fail(key, key, "is a", messages.type_name(), "- write a list of messages");
  check_messages(messages, key, place);
  const Json last = messages.back();
  if (messages.size() < 2 || last["role"] != "assistant" || !last.contains("content") || !last["content"].is_string()) {
    place.fail(key, key, "must end with an assistant's text after at least one other message");
  }
  record.response = last["content"];
  messages.erase(messages.size() - 1);
  record.prompt = std::move(messages);
  return record;
}

// Reads all wanted rows with `read_record(place)`. Data: PromptData or SftData.
template <typename Data, typename ReadRecord>
Data read_rows(const std::string& text_path, bool skip_bad_lines, ReadRecord read_record) {
  const DataPath path = parse_data_path(text_path);
  const std::string text = base::read_file(path.file, kMaxFileBytes);
  Data data;
  for (const Line& line : slice_rows(split_rows(text, data.num_blank_lines), path)) {
    try {
      data.records.push_back(read_record(Place{path.file, line}));
    } catch (const UserError& error) {
      if (!skip_bad_lines) throw UserError(std::string(error.what()) + " (--skip-bad-lines counts such lines instead)");
      data.bad_lines.count += 1;
      if (data.bad_lines.messages.size() < kMaxMessages) data.bad_lines.messages.emplace_back(error.what());
    }
  }
  const std::string first = data.bad_lines.messages.empty() ? "" : "; the first bad one: " + data.bad_lines.messages[0];
  TANDEM_USER_CHECK(!data.records.empty(), text_path + ": no record to work on:", data.num_blank_lines, "blank and",
                    data.bad_lines.count, "bad lines - add JSON lines, or widen the slice" + first);
  return data;
}

// One end of a slice, "" for none.
std::optional<int64_t> parse_bound(std::string_view text, const std::string& path) {
  if (text.empty()) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  TANDEM_USER_CHECK(error == std::errc() && end == text.data() + text.size(), path + ":", text,
                    "is no row number - write PATH@[a:b], PATH@[a:], PATH@[:b] or PATH");
  return value;
}

}  // namespace

DataPath parse_data_path(const std::string& text) {
  const size_t at = text.rfind("@[");
  if (at == std::string::npos) return {.file = text};
  std::string_view slice = std::string_view(text).substr(at + 2);
  const size_t colon = slice.find(':');
  TANDEM_USER_CHECK(colon != std::string_view::npos && slice.ends_with(']'),
                    text + ": not a slice of rows - write PATH@[a:b], PATH@[a:], PATH@[:b] or PATH");
  slice.remove_suffix(1);
  const std::optional<int64_t> begin = parse_bound(slice.substr(0, colon), text);
  const std::optional<int64_t> end = parse_bound(slice.substr(colon + 1), text);
  return {.file = text.substr(0, at),
          .has_begin = begin.has_value(),
          .has_end = end.has_value(),
          .begin = begin.value_or(0),
          .end = end.value_or(0)};
}

std::string label_text(const Json& label) {
  if (label.is_null()) return "";
  return label.is_string() ? label.get<std::string>() : base::dump_json(label);
}

PromptData read_prompts(const PromptOptions& options) {
  return read_rows<PromptData>(options.path, options.skip_bad_lines,
                               [&](const Place& place) { return read_prompt_record(options, place); });
}

SftData read_sft(const SftOptions& options) {
  return read_rows<SftData>(options.path, options.skip_bad_lines,
                            [&](const Place& place) { return read_sft_record(options, place); });
}

}  // namespace tandem::rl
