// The lines that `tandem score` reads: one sequence each, as token ids or as two texts. No torch and no tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "rl/sample.h"

namespace tandem::run {

struct ScoreLine {
  std::string place;  // FILE:LINE
  base::Json record;  // an object

  bool has_tokens() const { return record.contains("tokens"); }
};

// The lines of a JSONL file without the blank ones. UserError, with the place: a line is no JSON object, or there is
// none.
std::vector<ScoreLine> read_score_lines(const std::string& path);

// {"tokens": [...], "prompt_length": n}: everything after the first n tokens (1 when absent) is scored. Prompt and
// completion have one token or more, all of them ids below `vocab`; UserError otherwise.
rl::Sample token_sample(const ScoreLine& line, int64_t vocab);

// The text under "prompt" or "response" of a line without tokens; UserError when there is none.
const std::string& text_of(const ScoreLine& line, const char* key);

}  // namespace tandem::run
