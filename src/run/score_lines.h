// Reads the lines of `tandem score`: one sequence each, as token ids, or as a prompt and the text of its response. No
// torch and no tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "data/lines.h"
#include "rl/sample.h"

namespace tandem::run {

struct ScoreLine {
  std::string file = {};
  int64_t line = 0;   // number of the line, from 1
  std::string place;  // FILE:LINE
  base::Json record;  // an object

  // Returns the place for the reader of messages, without columns.
  data::Place at() const { return {file, line, {}, /*has_columns=*/false}; }
  bool has_tokens() const { return data::find_present(record, "tokens") != nullptr; }
};

// Returns the lines of a JSONL file without the blank ones, or the rows of a Parquet file (data::for_each_row); with
// PATH@[a:b] some of them. Throws UserError, with the place, if a line is no JSON object, or if there is none.
std::vector<ScoreLine> read_score_lines(const std::string& path, const data::OpenTable& open_parquet = {},
                                        const std::string& tool_key = "tools");

// Reads {"tokens": [...], "prompt_length": n}: everything after the first n tokens (1 when absent) is scored. Throws
// UserError unless prompt and completion have one token or more, all of them ids below `vocab`.
rl::Sample token_sample(const ScoreLine& line, int64_t vocab);

// Returns the "prompt" of a line without tokens: a text, or messages. The second function returns the list of tools
// under `key`, or null. Both throw UserError for anything else.
base::Json prompt_of(const ScoreLine& line);
base::Json tools_of(const ScoreLine& line, const std::string& key);

// Returns the text under that key of a line without tokens; throws UserError if there is none.
const std::string& text_of(const ScoreLine& line, const char* key);

}  // namespace tandem::run
