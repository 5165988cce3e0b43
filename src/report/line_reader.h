// Reads the lines of a run's files, which are JSON records. A run may still be writing them, or may have been killed.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"

namespace tandem::report {

// Longer lines are skipped and counted.
constexpr int64_t kMaxLineBytes = int64_t{16} << 20;

// Reads the lines of a file as it was when it was opened: later lines of a running run are not seen.
class LineReader {
 public:
  explicit LineReader(const std::string& path, int64_t begin = 0, int64_t end = std::numeric_limits<int64_t>::max());

  // Reads the next line without its end; returns false after the last. A last line without '\n' does not count:
  // is_cut() reports it.
  bool next(std::string& line);

  int64_t number() const { return number_; }  // number of the last line, from 1
  int64_t num_too_long() const { return num_too_long_; }
  bool is_cut() const { return is_cut_; }

 private:
  bool fill();

  base::ReadableFile file_;
  int64_t at_, end_, number_ = 0, num_too_long_ = 0;
  std::string buffer_;
  size_t begin_ = 0;
  bool is_cut_ = false;
};

// Counts the lines of one file that are no records, and describes them and the reader's other lines in sentences.
struct BadLines {
  int64_t count = 0, first = 0;

  void add(int64_t line) {
    if (count++ == 0) first = line;
  }
  // Adds a sentence to `left_out` for each kind of line that is missing.
  void say(const std::string& file, const LineReader& reader, std::vector<std::string>& left_out) const;
};

// Returns the JSON object of a line, or null if the line holds something else.
base::Json parsed_line(const std::string& line);

// Returns a metric: a number, or the text that base::dump_json() writes for one that JSON does not have.
std::optional<double> metric_value(const base::Json& value);

}  // namespace tandem::report
