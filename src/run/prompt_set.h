// A data file as the engine wants it: every prompt rendered and encoded before any work begins, so that a line that the
// template refuses, or one that is too long, is found now and not at step 40.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "config/data_options.h"
#include "rl/prompts.h"
#include "rl/sample.h"
#include "text/text_worker.h"

namespace tandem::run {

// A line of the data, and the prompt that was made of it.
struct PromptLine {
  rl::PromptRecord record;
  rl::SharedPrompt prompt;
};

struct PromptSet {
  std::string path;
  std::vector<PromptLine> prompts;  // never empty
  int64_t num_bad_lines = 0;        // left out, with --skip-bad-lines
  int64_t num_too_long = 0;         // left out, beyond --rollout-max-prompt-len
  int64_t longest_tokens = 0;
  bool is_rendered = false;           // the chat template rendered prompts
  bool template_opens_answer = true;  // opens_answer(), where it rendered some that are not continued
};

// The rewards that its lines ask for themselves (metadata.rm_type).
std::set<std::string> rm_types_of(const PromptSet& set);

// Says what was left out. UserError for a line that is wrong (FILE:LINE), or when nothing is left.
PromptSet load_prompts(const config::DataOptions& options, text::TextWorker& text);

}  // namespace tandem::run
