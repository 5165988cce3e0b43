#include "data/lines.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <optional>
#include <system_error>
#include <utility>

#include "base/data_json.h"
#include "base/files.h"
#include "base/hub_name.h"
#include "base/message_text.h"

namespace tandem::data {
namespace {

using base::Json;

constexpr int64_t kMaxFileBytes = int64_t{8} << 30;  // bytes of JSONL, or of a Parquet file's rows as JSONL
constexpr size_t kMaxMessages = 10;                  // of BadLines

// Published data sets use these names for a prompt and a label, the most telling ones first: GSM8K, MATH, DAPO, verl,
// TRL, OpenR1, Alpaca.
constexpr std::array kPromptKeys = {"prompt",   "question",    "problem", "query",
                                    "messages", "instruction", "input",   "text"};
constexpr std::array kLabelKeys = {"label",        "answer",          "solution", "reward_model.ground_truth",
                                   "ground_truth", "expected_answer", "target",   "response",
                                   "completion",   "output"};

template <typename Keys>
std::string first_of(const Keys& keys, const Json& object) {
  const auto found = std::ranges::find_if(keys, [&](const char* key) { return find_value(object, key) != nullptr; });
  return found == keys.end() ? "" : *found;
}

// Returns the value under the part of a key before its first dot: a member of an object or an element of a list.
const Json* find_part(const Json& value, std::string_view part) {
  if (value.is_object()) {
    // The key must be a std::string: nlohmann-json 3.10's ordered objects cannot be asked by a view.
    const auto found = value.find(std::string(part));
    return found == value.end() ? nullptr : &*found;
  }
  size_t index = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
  const bool is_index = value.is_array() && error == std::errc() && end == part.data() + part.size();
  return is_index && index < value.size() ? &value[index] : nullptr;
}

const Json* find_along(const Json& value, std::string_view key) {
  if (const Json* const found = find_part(value, key)) return found;
  const size_t dot = key.find('.');
  if (dot == std::string_view::npos) return nullptr;
  const Json* const found = find_part(value, key.substr(0, dot));
  return found == nullptr ? nullptr : find_along(*found, key.substr(dot + 1));
}

struct Line {
  int64_t number = 0;
  std::string_view text;
};

std::string_view without_marks(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (text.ends_with('\r')) text.remove_suffix(1);
  return text;
}

// Returns the rows of a file: its lines without the blank ones.
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

// Refuses files of which each line would be wrong: compressed ones, and one list of objects over all lines.
void check_form(std::string_view text, const std::vector<Line>& rows, const std::string& file) {
  constexpr std::pair<std::string_view, const char*> kCompressed[] = {{"\x1F\x8B", "gzip"},
                                                                      {"\x28\xB5\x2F\xFD", "zstd"},
                                                                      {"BZh", "bzip2"},
                                                                      {"\xFD\x37zXZ", "xz"},
                                                                      {"PK\x03\x04", "zip"}};
  for (const auto& [magic, name] : kCompressed) {
    TANDEM_USER_CHECK(!text.starts_with(magic),
                      file + ": is compressed (" + name + "); unpack it, and name the JSON lines");
  }
  TANDEM_USER_CHECK(!text.starts_with("version https://git-lfs."),
                    file + ": is a Git LFS pointer and not the data; get the file with git lfs pull");
  // A list on one line is that line's mistake.
  const std::string_view first = rows.empty() ? "" : rows.front().text;
  const size_t begin = first.find_first_not_of(" \t"), end = first.find_last_not_of(" \t");
  const bool is_list = rows.size() > 1 && first[begin] == '[' && first[end] != ']' && rows.back().text.ends_with(']');
  TANDEM_USER_CHECK(
      !is_list,
      file + ": is one JSON list; JSON lines are read, an object {...} on each: write it so, as with jq -c '.[]'");
}

// Returns the rows of `size` that Python's rows[begin:end] takes: from the first to before the second.
std::pair<int64_t, int64_t> slice_of(const DataPath& path, int64_t size) {
  const auto bound = [size](int64_t index) { return std::clamp<int64_t>(index < 0 ? index + size : index, 0, size); };
  const int64_t begin = path.has_begin ? bound(path.begin) : 0;
  const int64_t end = path.has_end ? bound(path.end) : size;
  return {begin, std::max(begin, end)};
}

bool is_parquet(const std::string& file) {
  constexpr std::string_view kMagic = "PAR1";
  const base::ReadableFile opened(file);
  std::array<std::byte, kMagic.size()> first;
  if (opened.size() < std::ssize(first)) return false;
  opened.read_at(0, first);
  return std::equal(first.begin(), first.end(), kMagic.begin(),
                    [](std::byte byte, char c) { return byte == static_cast<std::byte>(c); });
}

// Gives the wanted rows of a Parquet file to `take`, in order.
template <typename Take>
void take_rows(const Table& table, const DataPath& path, Take take) {
  int64_t num_bytes = 0;
  const auto [begin, end] = slice_of(path, table.num_rows);
  for (int64_t next = begin; next < end;) {
    for (const TableRow& row : table.read(next, end)) {
      ++next;
      num_bytes += std::ssize(row.text) + 1;
      TANDEM_USER_CHECK(num_bytes <= kMaxFileBytes, path.file + ": its rows come to more than", kMaxFileBytes,
                        "bytes as JSON, the most that is read here; is it the right file? PATH@[a:b] takes rows of it");
      take(Place{path.file, next, row.text, /*has_columns=*/false}, row);
    }
  }
}

// Parses one end of a slice, "" for none.
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

void BadLines::add(int64_t line, const std::string& message) {
  const bool is_first = count == 0 || line < first_line;
  count += 1;
  if (is_first) {
    first_line = line;
    messages.insert(messages.begin(), message);
    if (messages.size() > kMaxMessages) messages.pop_back();
  } else if (messages.size() < kMaxMessages) {
    messages.push_back(message);
  }
}

UserError bad_line_error(const std::string& message) {
  return UserError(message + " (--skip-bad-lines counts such lines instead)");
}

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos; }

int64_t Place::column(const std::string& key) const {
  const size_t at = key.empty() ? std::string_view::npos : text.find("\"" + key + "\"");
  if (at == std::string_view::npos) {
    const size_t dot = key.rfind('.');
    return dot == std::string::npos ? 1 : column(key.substr(dot + 1));
  }
  const auto is_start = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; };
  return 1 + std::count_if(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), is_start);
}

Json parse_object(const Place& place) {
  Json object = base::parse_data_json(place.text, place.file, place.line);
  if (!object.is_object())
    place.fail("", "the line is a JSON", object.type_name(), "- write one object {...} per line");
  return object;
}

const Json* find_value(const Json& object, std::string_view key) {
  return object.is_object() ? find_along(object, key) : nullptr;
}

const Json* find_present(const Json& object, std::string_view key) {
  const Json* const found = find_value(object, key);
  return found == nullptr || found->is_null() ? nullptr : found;
}

std::string keys_text(const Json& object) {
  constexpr size_t kMaxKeys = 12;
  if (object.empty()) return "there are none";
  std::string text = object.size() == 1 ? "there is " : "there are ";
  size_t count = 0;
  for (const auto& [key, value] : object.items()) {
    if (count == kMaxKeys) return text + " and " + std::to_string(object.size() - count) + " more";
    text += (count++ > 0 ? ", " : "") + base::one_line(key, 40);
  }
  return text;
}

std::string likely_prompt_key(const Json& object) { return first_of(kPromptKeys, object); }
std::string likely_label_key(const Json& object) { return first_of(kLabelKeys, object); }

LeftOut for_each_row(const std::string& data_path, const std::vector<std::string>& keys, bool skip_bad_lines,
                     const OpenTable& open_parquet, const std::function<void(const Place&)>& read) {
  const DataPath path = parse_data_path(data_path);
  const std::string remedy = base::file_exists(path.file) ? "" : base::hub_remedy(path.file, base::HubKind::kDataSet);
  TANDEM_USER_CHECK(remedy.empty(), path.file + ": no such file" + remedy);
  LeftOut left_out;
  BadLines& bad = left_out.bad_lines;
  int64_t num_rows = 0;
  const auto take = [&](const Place& place, const std::string& wrong) {
    ++num_rows;
    try {
      if (!wrong.empty()) place.fail("", wrong);
      read(place);
    } catch (const UserError& error) {
      if (!skip_bad_lines) throw bad_line_error(error.what());
      bad.add(place.line, error.what());
    }
  };
  const bool is_table = open_parquet && is_parquet(path.file);
  if (is_table) {
    const Table table = open_parquet(path.file, keys);
    take_rows(table, path, [&](const Place& place, const TableRow& row) {
      take(place, row.wrong);
      if (!row.left_out.empty() && left_out.num_rows_without_value++ == 0) {
        left_out.first_without_value = path.file + ":" + std::to_string(place.line) + ": " + row.left_out;
      }
    });
  } else {
    const std::string text = base::read_file(path.file, kMaxFileBytes);
    const std::vector<Line> rows = split_rows(text, left_out.num_blank_lines);
    check_form(text, rows, path.file);
    const auto [begin, end] = slice_of(path, std::ssize(rows));
    for (int64_t i = begin; i < end; ++i) {
      const Line& row = rows[static_cast<size_t>(i)];
      take(Place{path.file, row.number, row.text}, "");
    }
  }
  const std::string first = bad.messages.empty() ? "" : "; the first bad one: " + bad.messages[0];
  TANDEM_USER_CHECK(
      bad.count < num_rows, data_path + ": no record to work on:", left_out.num_blank_lines, "blank and", bad.count,
      "bad lines - add " + std::string(is_table ? "rows" : "JSON lines") + ", or widen the slice" + first);
  return left_out;
}

}  // namespace tandem::data
