// The lines that `tandem score` reads: one sequence each, as token ids, or as a prompt and the text of its response. No
// torch and no tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "rl/data_lines.h"
#include "rl/sample.h"

namespace tandem::run {

struct ScoreLine {
  std::string file = {};
  int64_t line = 0;   // from 1
  std::string place;  // FILE:LINE
  base::Json record;  // an object

  // For what reads messages; it names no columns.
  rl::Place at() const { return {file, line, {}, /*has_columns=*/false}; }
  bool has_tokens() const { return record.contains("tokens"); }
};

// The lines of a JSONL file without the blank ones. UserError, with the place: a line is no JSON object, or there is
// none.
std::vector<ScoreLine> read_score_lines(const std::string& path);

// {"tokens": [...], "prompt_length": n}: everything after the first n tokens (1 when absent) is scored. Prompt and
// completion have one token or more, all of them ids below `vocab`; UserError otherwise.
rl::Sample token_sample(const ScoreLine& line, int64_t vocab);

// What stands under "prompt" of a line without tokens: a text, or messages; null or the list of tools that stands under
// `key`. UserError for anything else.
base::Json prompt_of(const ScoreLine& line);
base::Json tools_of(const ScoreLine& line, const std::string& key);

// The text under that key of a line without tokens; UserError when there is none.
const std::string& text_of(const ScoreLine& line, const char* key);

}  // namespace tandem::run
