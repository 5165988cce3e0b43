// Reads a prompt file into records, strictly (data/lines.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "data/lines.h"

namespace tandem::data {

// Lists the rewards that a line may choose by "rm_type" in its metadata object, which overrides --rm-type.
struct LineRewards {
  std::vector<std::string> names;       // allowed names; empty: "rm_type" has no meaning
  std::vector<std::string> need_label;  // names of rewards that compare with a label
  std::vector<std::string> need_tests;  // names of rewards whose label holds tests: a list, an object or a text
  // These end messages: `hint` follows the names, for an unknown name; `refused` tells why no line may choose a reward
  // (empty: lines may); `needed` tells why each line must (empty: it need not).
  std::string hint = "", refused = "", needed = "";
};

struct PromptOptions {
  std::string path = "";  // PATH or PATH@[a:b]
  // A key with dots that the line does not have is a path: "a.b" is the key b of the object under a.
  std::string input_key = "prompt";       // a non-empty string, or a list of messages
  std::string label_key = "label";        // may be absent
  std::string metadata_key = "metadata";  // an object; may be absent
  std::string tool_key = "tools";         // a list; may be absent
  // This is the reward that compares completions with labels, "--rm-type exact": each line must have a label that is a
  // text (not blank), a number, true or false. If it is empty, lines may lack a label, or have any.
  std::string label_needed_by = "";
  bool label_holds_tests = false;          // for what needs it: a list or an object will do, too
  std::string label_flag = "--label-key";  // flag of the label's key, for messages
  LineRewards rewards = {};
  bool skip_bad_lines = false;
};

struct PromptRecord {
  int64_t line = 0;     // line in the file, from 1; the row in Parquet
  base::Json prompt;    // string, or list of {"role", "content", ...}
  base::Json label;     // any value of the line; null: none
  base::Json metadata;  // object: the line's other keys, metadata_key too, overridden by the contents of metadata_key
  base::Json tools;     // list, or null
  std::string rm_type = "";  // one of LineRewards::names, or empty

  static void fields(auto& wire, auto& m) { wire(m.line, m.prompt, m.label, m.metadata, m.tools, m.rm_type); }
};

// Returns the label as dumps show it: a string as it is, "" for null, all else as JSON writes it.
std::string label_text(const base::Json& label);

struct PromptData {
  std::vector<PromptRecord> records;  // never empty
  int64_t num_blank_lines = 0;
  BadLines bad_lines;                  // only with skip_bad_lines
  int64_t num_rows_without_value = 0;  // see LeftOut
  std::string first_without_value = {};
};
// Throws UserError if the file cannot be read, a line is wrong, or no record is left.
PromptData read_prompts(const PromptOptions& options, const OpenTable& open_parquet = {});

}  // namespace tandem::data
