// data/lines: PATH@[a:b] means what it means in Python. The first line of an input follows the file's name, the
// others are the file: every line that is not blank is a row.
#include <algorithm>
#include <charconv>
#include <optional>

#include "data/lines.h"
#include "tests/fuzz/target.h"

using namespace tandem::fuzz;
__extension__ using Wide = __int128;  // pedantic compilers know it is no ISO type

namespace {

// Numbers of the lines that are rows.
std::vector<int64_t> rows_of(std::string_view text) {
  std::vector<int64_t> rows;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
    if (!tandem::data::is_blank(line)) rows.push_back(number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return rows;
}

// Reads one end as Python does: digits with a sign at most; nothing if it is empty.
struct Bound {
  bool is_valid = true;
  std::optional<int64_t> value;
};
Bound bound_of(std::string_view text) {
  if (text.empty()) return {};
  const std::string_view digits = text.substr(text.front() == '-' ? 1 : 0);
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos) return {false, {}};
  int64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) return {false, {}};
  return {true, value};
}

// Returns where a slice's end lies among `size` rows, in numbers that cannot overflow.
Wide place_of(const std::optional<int64_t>& end, int64_t size, int64_t missing) {
  if (!end) return missing;
  return std::clamp<Wide>(*end < 0 ? static_cast<Wide>(*end) + size : static_cast<Wide>(*end), 0, size);
}

struct Wanted {
  bool is_valid = true;
  std::vector<int64_t> rows;
};
// A suffix that has no "@[" is part of the file's name, and that file does not exist.
Wanted wanted(std::string_view suffix, std::vector<int64_t> rows) {
  const size_t at = suffix.rfind("@[");
  if (at == std::string_view::npos) return {suffix.empty(), std::move(rows)};
  const size_t colon = suffix.find(':', at);
  if (at != 0 || colon == std::string_view::npos || !suffix.ends_with(']')) return {false, {}};
  const Bound begin = bound_of(suffix.substr(2, colon - 2));
  const Bound end = bound_of(suffix.substr(colon + 1, suffix.size() - colon - 2));
  if (!begin.is_valid || !end.is_valid) return {false, {}};
  const auto size = static_cast<int64_t>(rows.size());
  const Wide first = place_of(begin.value, size, 0), last = place_of(end.value, size, size);
  std::vector<int64_t> some;
  for (Wide i = first; i < last; ++i) some.push_back(rows[static_cast<size_t>(i)]);
  return {true, std::move(some)};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const MemoryFile file;
  const std::string_view input = text_of(data, size);
  const size_t end = std::min(input.find('\n'), input.size());
  const std::string_view suffix = input.substr(0, end);
  const std::string_view text = input.substr(std::min(end + 1, input.size()));
  if (suffix.find('\0') != std::string_view::npos) return 0;  // no argument holds one
  file.write(text);
  std::vector<int64_t> rows;
  const bool accepted = accepts(
      [&] {
        tandem::data::for_each_row(file.path() + std::string(suffix), /*keys=*/{}, /*skip_bad_lines=*/false,
                                   /*open_parquet=*/{},
                                   [&](const tandem::data::Place& place) { rows.push_back(place.line); });
      },
      [](std::string_view message) { require(message.starts_with(file.path()), "a refusal names the file", message); });
  const Wanted expected = wanted(suffix, rows_of(text));
  require(accepted == (expected.is_valid && !expected.rows.empty()), "a slice is read where Python reads one", suffix);
  if (accepted) require(rows == expected.rows, "the rows are those that Python's slice has", suffix);
  return 0;
}
