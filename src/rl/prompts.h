// Prompt data: a file to records, strictly (rl/data_lines.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "rl/data_lines.h"

namespace tandem::rl {

// What a line may say of its own reward: "rm_type" in its metadata object, which takes the place of --rm-type.
struct LineRewards {
  std::vector<std::string> names;       // that it may say; empty: "rm_type" means nothing to us
  std::vector<std::string> need_label;  // those of them that compare with a label
  // Ends of messages: behind the names, for a name that is none of them; why no line may say one (empty: lines may);
  // why each line must (empty: it need not).
  std::string hint = "", refused = "", needed = "";
};

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
  LineRewards rewards = {};
  bool skip_bad_lines = false;
};

struct PromptRecord {
  int64_t line = 0;          // in the file, from 1; of Parquet the row
  base::Json prompt;         // string, or list of {"role", "content", ...}
  base::Json label;          // whatever the line holds; null: none
  base::Json metadata;       // object: the line's other keys, metadata_key too, and over them what metadata_key holds
  base::Json tools;          // list, or null
  std::string rm_type = "";  // of LineRewards::names, or empty

  static void fields(auto& wire, auto& m) { wire(m.line, m.prompt, m.label, m.metadata, m.tools, m.rm_type); }
};

// The label as dumps show it: a string as it is, "" for null, all else as JSON writes it.
std::string label_text(const base::Json& label);

struct PromptData {
  std::vector<PromptRecord> records;  // never empty
  int64_t num_blank_lines = 0;
  BadLines bad_lines;                  // only with skip_bad_lines
  int64_t num_rows_without_value = 0;  // as LeftOut says
  std::string first_without_value = {};
};
// UserError: the file cannot be read, a line is wrong, or no record is left.
PromptData read_prompts(const PromptOptions& options, const OpenTable& open_parquet = {});

}  // namespace tandem::rl
