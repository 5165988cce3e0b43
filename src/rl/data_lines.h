// Data files, read strictly: JSONL, and Parquet through the function that the caller gives. A line that is wrong is an
// error with FILE:LINE:COLUMN and a remedy, or with skip_bad_lines a count. Blank lines are no lines; a byte order mark
// before and a carriage return after a record are taken off; a key given twice is an error, because which one is meant
// cannot be known. A row of Parquet is a line, but for its place in the file: FILE:ROW.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"

namespace tandem::rl {

// A data file and the rows of it that are wanted, written as PATH or PATH@[a:b] with Python's slice rules (either end
// may be missing or negative). Rows of a JSONL file are its lines without the blank ones.
struct DataPath {
  std::string file = "";
  bool has_begin = false, has_end = false;
  int64_t begin = 0, end = 0;
};
// UserError for a suffix that begins as a slice and is none.
DataPath parse_data_path(const std::string& text);

// One place per mistake: "data.jsonl:12:4: what is wrong, remedy".
struct BadLines {
  int64_t count = 0;
  std::vector<std::string> messages;  // of the first ten
};

// One line being read, for messages with its place.
struct Place {
  const std::string& file;
  int64_t line = 0;  // in the file, from 1; of Parquet the row
  std::string_view text;
  bool has_columns = true;  // false: the file does not hold this text (Parquet)

  // Where `key`, or the innermost part of a path of keys, stands in the line; the line's start when it does not. Good
  // enough to find it by eye.
  int64_t column(const std::string& key) const;

  template <typename... Values>
  [[noreturn]] void fail(const std::string& key, const Values&... what) const {
    const std::string at = has_columns ? ":" + std::to_string(column(key)) : "";
    throw UserError(file + ":" + std::to_string(line) + at + ": " + base::join_message(what...));
  }
};

// Parses the line, which must be one JSON object; a UserError names its place otherwise.
base::Json parse_object(const Place& place);

// What `key` names: the member of that very name, else along the dots of a path ("a.b" is the key b of the object under
// a); nullptr where there is none.
const base::Json* find_value(const base::Json& object, std::string_view key);

// "there are question, answer": the keys of a line that lacks one, for messages.
std::string keys_text(const base::Json& object);
// The key of the line that most likely holds its prompt, or its label, by the names that published data use; "": none.
std::string likely_prompt_key(const base::Json& object);
std::string likely_label_key(const base::Json& object);

// Whether the text is empty or all white space.
bool is_blank(std::string_view text);

// The lines of a file that became no record, and the values of lines that became none.
struct LeftOut {
  int64_t num_blank_lines = 0;
  int64_t num_rows_without_value = 0;  // of Parquet: rows with a value, of a column that is not read, that is now null
  std::string first_without_value;     // the first of them: "FILE:ROW: why"
  BadLines bad_lines;                  // only with skip_bad_lines
};

// The rows of a file that is no text, each as the line of a JSONL file that it would be.
struct TableRow {
  std::string text;
  std::string wrong;          // why it cannot be one; empty: `text` is
  std::string left_out = {};  // why a value of a column that is not read is null in it; empty: none is
};
struct Table {
  int64_t num_rows = 0;
  // Of the rows from `begin` to `end` - 1 the first ones, at least one.
  std::function<std::vector<TableRow>(int64_t begin, int64_t end)> read;
};
using OpenTable = std::function<Table(const std::string& file, const std::vector<std::string>& keys)>;

// Gives each wanted row to `read`, whose UserErrors are bad lines. A file that begins as Parquet does ("PAR1") is read
// through `open_parquet`, where values under `keys` must have a form in JSON; without that, every file is JSONL.
// UserError: the file cannot be read, a line is wrong, or no row is good.
LeftOut for_each_row(const std::string& data_path, const std::vector<std::string>& keys, bool skip_bad_lines,
                     const OpenTable& open_parquet, const std::function<void(const Place&)>& read);

}  // namespace tandem::rl
