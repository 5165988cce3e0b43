#include "report/line_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "base/message_text.h"
#include "tandem/error.h"

namespace tandem::report {

using base::Json;

LineReader::LineReader(const std::string& path, int64_t begin, int64_t end)
    : file_(path), at_(begin), end_(std::min(end, file_.size())) {}

bool LineReader::next(std::string& line) {
  line.clear();
  bool is_too_long = false;
  while (true) {
    if (begin_ == buffer_.size() && !fill()) {
      is_cut_ = !line.empty() || is_too_long;
      return false;
    }
    const size_t newline = buffer_.find('\n', begin_);
    const size_t stop = newline == std::string::npos ? buffer_.size() : newline;
    if (static_cast<int64_t>(line.size() + stop - begin_) > kMaxLineBytes) is_too_long = true;
    if (is_too_long) {
      line.clear();
    } else {
      line.append(buffer_, begin_, stop - begin_);
    }
    begin_ = stop;
    if (newline == std::string::npos) continue;
    ++begin_;
    ++number_;
    if (!is_too_long) return true;
    ++num_too_long_;
    is_too_long = false;
  }
}

bool LineReader::fill() {
  constexpr int64_t kChunkBytes = 1 << 20;
  const int64_t bytes = std::min(kChunkBytes, end_ - at_);
  if (bytes <= 0) return false;
  buffer_.resize(static_cast<size_t>(bytes));
  file_.read_at(at_, std::as_writable_bytes(std::span(buffer_)));
  at_ += bytes;
  begin_ = 0;
  return true;
}

void BadLines::say(const std::string& file, const LineReader& reader, std::vector<std::string>& left_out) const {
  if (count > 0)
    left_out.push_back(fmt::format("{}: {} no records and are left out; the first is line {}.", file,
                                   count == 1 ? "1 line is" : base::with_commas(count) + " lines are", first));
  if (reader.num_too_long() > 0)
    left_out.push_back(
        fmt::format("{}: {} longer than {} MiB and left out.", file,
                    base::counted(reader.num_too_long(), "line") + (reader.num_too_long() == 1 ? " is" : " are"),
                    kMaxLineBytes >> 20));
  if (reader.is_cut())
    left_out.push_back(file +
                       ": the last line is not finished and is left out; the run is writing it, or was killed there.");
}

Json parsed_line(const std::string& line) {
  try {
    Json value = base::parse_json(line, "line");
    return value.is_object() ? value : Json(nullptr);
  } catch (const UserError&) {
    return nullptr;
  }
}

std::optional<double> metric_value(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

}  // namespace tandem::report
