// Reads data files strictly: JSONL, and Parquet through the function that the caller gives. A wrong line is an error
// with FILE:LINE:COLUMN and a remedy, or with skip_bad_lines a count. Blank lines do not count; a byte order mark
// before and a carriage return after a record are removed; a key given twice is an error, because it is unknown which
// one is meant. A row of Parquet is a line, except that its place in the file is FILE:ROW.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"

namespace tandem::data {

// Names a data file and the wanted rows of it, written as PATH or PATH@[a:b] with Python's slice rules (either end may
// be missing or negative). Rows of a JSONL file are its lines without the blank ones.
struct DataPath {
  std::string file = "";
  bool has_begin = false, has_end = false;
  int64_t begin = 0, end = 0;
};
// Throws UserError for a suffix that begins as a slice and is none.
DataPath parse_data_path(const std::string& text);

// Each message is one mistake with its place: "data.jsonl:12:4: what is wrong, remedy".
struct BadLines {
  int64_t count = 0;
  int64_t first_line = 0;             // the first of them in the file
  std::vector<std::string> messages;  // messages of ten, that of `first_line` first

  // Counts a line, once; they may come in any order.
  void add(int64_t line, const std::string& message);
};

// Returns the error of a line that --skip-bad-lines would leave out.
UserError bad_line_error(const std::string& message);

// Describes the line that is being read, for messages with its place.
struct Place {
  const std::string& file;
  int64_t line = 0;  // line in the file, from 1; the row in Parquet
  std::string_view text;
  bool has_columns = true;  // false: the file does not hold this text (Parquet)

  // Returns the column of `key`, or of the innermost part of a path of keys; that of the line's start if it is not
  // there. It is good enough to find the key by eye.
  int64_t column(const std::string& key) const;

  template <typename... Values>
  [[noreturn]] void fail(const std::string& key, const Values&... what) const {
    const std::string at = has_columns ? ":" + std::to_string(column(key)) : "";
    throw UserError(file + ":" + std::to_string(line) + at + ": " + base::join_message(what...));
  }
};

// Parses the line, which must be one JSON object; otherwise throws a UserError with its place.
base::Json parse_object(const Place& place);

// Returns the member of that very name, else the one along the dots of a path ("a.b" is the key b of the object under
// a, "a.0" the first element of the list under a); nullptr if there is none.
const base::Json* find_value(const base::Json& object, std::string_view key);
// Returns the same without null, which counts as absent: a table of several formats has null in the columns of the
// others.
const base::Json* find_present(const base::Json& object, std::string_view key);

// Returns "there are question, answer": the keys of a line that lacks one, for messages.
std::string keys_text(const base::Json& object);
// These return the key of the line that most likely holds its prompt, or its label, by the names that published data
// use; "" if none does.
std::string likely_prompt_key(const base::Json& object);
std::string likely_label_key(const base::Json& object);

// Returns whether the text is empty or all white space.
bool is_blank(std::string_view text);

// Counts the lines of a file that became no record, and the values of lines that were left out.
struct LeftOut {
  int64_t num_blank_lines = 0;
  int64_t num_rows_without_value = 0;  // Parquet rows with a value that became null, in a column that is not read
  std::string first_without_value;     // first of them: "FILE:ROW: why"
  BadLines bad_lines;                  // only with skip_bad_lines
};

// Holds a row of a file that is no text, as the line of a JSONL file that it would be.
struct TableRow {
  std::string text;
  std::string wrong;          // reason why it cannot be a line; empty: `text` is one
  std::string left_out = {};  // reason why a value of a column that is not read is null; empty: none is
};
struct Table {
  int64_t num_rows = 0;
  // Returns the first rows of those from `begin` to `end` - 1, at least one.
  std::function<std::vector<TableRow>(int64_t begin, int64_t end)> read;
};
using OpenTable = std::function<Table(const std::string& file, const std::vector<std::string>& keys)>;

// Gives each wanted row to `read`, whose UserErrors count as bad lines. A file that begins as Parquet does ("PAR1") is
// read through `open_parquet`, where values under `keys` must have a form in JSON; without that function, every file is
// JSONL. Throws UserError if the file cannot be read, a line is wrong, or no row is good.
LeftOut for_each_row(const std::string& data_path, const std::vector<std::string>& keys, bool skip_bad_lines,
                     const OpenTable& open_parquet, const std::function<void(const Place&)>& read);

}  // namespace tandem::data
