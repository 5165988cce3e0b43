// Prompt and SFT data: JSONL files to records, strictly. A line that is wrong is an error with FILE:LINE:COLUMN and a
// remedy, or with skip_bad_lines a count. Blank lines are no lines; a byte order mark before and a carriage return
// after a record are taken off; a key given twice is an error, because which one is meant cannot be known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace tandem::rl {

// A data file and the rows of it that are wanted, written as PATH or PATH@[a:b] with Python's slice rules (either end
// may be missing or negative). Rows are the file's lines without the blank ones.
struct DataPath {
  std::string file = "";
  bool has_begin = false, has_end = false;
  int64_t begin = 0, end = 0;
};
// UserError for a suffix that begins as a slice and is none.
DataPath parse_data_path(const std::string& text);

struct PromptOptions {
  std::string path = "";  // PATH or PATH@[a:b]
  // A key with dots that the line does not have is a path: "a.b" is the key b of the object under a.
  std::string input_key = "prompt";       // a non-empty string, or a list of messages
  std::string label_key = "label";        // may be absent
  std::string metadata_key = "metadata";  // an object; may be absent
  std::string tool_key = "tools";         // a list; may be absent
  // Compares completions with labels, "--rm-type exact": each line must have one that is a text (not blank), a number,
  // true or false. Empty: lines may lack a label, or have any.
  std::string label_needed_by = "";
  std::string label_flag = "--label-key";  // names the label's key, in messages
  bool skip_bad_lines = false;
};

struct PromptRecord {
  int64_t line = 0;     // in the file, from 1
  base::Json prompt;    // string, or list of {"role", "content", ...}
  base::Json label;     // whatever the line holds; null: none
  base::Json metadata;  // object: the line's other keys, metadata_key too, and over them what metadata_key holds
  base::Json tools;     // list, or null
};

// The label as dumps show it: a string as it is, "" for null, all else as JSON writes it.
std::string label_text(const base::Json& label);

// One place per mistake: "data.jsonl:12:4: what is wrong, remedy".
struct BadLines {
  int64_t count = 0;
  std::vector<std::string> messages;  // of the first ten
};

struct PromptData {
  std::vector<PromptRecord> records;  // never empty
  int64_t num_blank_lines = 0;
  BadLines bad_lines;  // only with skip_bad_lines
};
// UserError: the file cannot be read, a line is wrong, or no record is left.
PromptData read_prompts(const PromptOptions& options);

// What to learn to say, and after what: {"prompt": ..., "response": "..."} or {"messages": [..., an assistant's]}.
struct SftOptions {
  std::string path = "";
  std::string prompt_key = "prompt";
  std::string response_key = "response";
  std::string messages_key = "messages";
  std::string tool_key = "tools";
  bool skip_bad_lines = false;
};

struct SftRecord {
  int64_t line = 0;
  base::Json prompt;     // as PromptRecord's; of "messages" all but the last
  std::string response;  // of "messages" the last one's content, whose role is assistant
  base::Json tools;
};

struct SftData {
  std::vector<SftRecord> records;  // never empty
  int64_t num_blank_lines = 0;
  BadLines bad_lines;
};
SftData read_sft(const SftOptions& options);

}  // namespace tandem::rl
