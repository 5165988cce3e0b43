// A data file as the engine wants it: every prompt rendered and encoded before any work begins, so that a line that the
// template refuses, or one that is too long, is found now and not at step 40.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "config/data_options.h"
#include "data/prompts.h"
#include "rl/sample.h"
#include "session/conversations.h"
#include "text/text_worker.h"

namespace tandem::session {

// The answer that a line gives to its prompt.
struct GivenAnswer {
  std::vector<int32_t> tokens;  // with the token that ends it; empty: the line's was not read
  std::string text;
};

// A line of the data, and the prompt that was made of it.
struct PromptLine {
  data::PromptRecord record;
  rl::SharedPrompt prompt;
  GivenAnswer answer = {};  // read_given_answers() sets it; who samples needs none

  static void fields(auto& wire, auto& m) {
    wire(m.record);
    if constexpr (std::remove_cvref_t<decltype(wire)>::kReads) {
      rl::Prompt prompt;
      wire(prompt.tokens, prompt.text, prompt.label);
      m.prompt = std::make_shared<const rl::Prompt>(std::move(prompt));
    } else {
      wire(m.prompt->tokens, m.prompt->text, m.prompt->label);
    }
  }
};

struct PromptSet {
  std::string path;                 // path of the file, or of the first of several
  std::vector<PromptLine> prompts;  // never empty
  std::vector<int64_t> file_sizes;  // number of prompts from each file, in the order of `prompts`: 1 or more
  std::unordered_map<const rl::Prompt*, std::string> sources;  // FILE:LINE of each prompt, if there are several files
  int64_t num_bad_lines = 0;                                   // lines left out, with --skip-bad-lines
  int64_t num_too_long = 0;                                    // prompts left out, beyond --rollout-max-prompt-len
  int64_t longest_tokens = 0;
  std::string longest_place;          // FILE:LINE of the first prompt with so many
  std::vector<int32_t> text_prefix;   // tokens that --add-special-tokens has put before plain texts
  bool is_rendered = false;           // whether the chat template rendered prompts
  bool template_opens_answer = true;  // opens_answer(), where it rendered some that are not continued

  // Returns for each sample the line (FILE:LINE) that it was made from; "" for a sample that was read from elsewhere.
  // Returns nothing at all if there is only one file, which everybody knows.
  std::vector<std::string> sources_of(std::span<const rl::Sample> samples) const;
};

// Returns the rewards that lines ask for themselves (metadata.rm_type).
std::set<std::string> rm_types_of(const PromptSet& set);

// Returns the columns that a TRL function may name (docs/REWARDS.md), or whether one exists: the label, and the other
// keys of the lines.
bool has_column(const PromptSet& set, const std::string& label_key, const std::string& name);
std::set<std::string> columns_of(const PromptSet& set, const std::string& label_key);

// Gives `refuse` each line of a set that cannot be used, and the reason with its place (session/grader_setup.h).
using CheckLines = std::function<void(const PromptSet& set, const Refuse& refuse)>;

// Loads the prompts of the file options.lines.path. Says what was left out. Throws UserError for a line that is wrong
// or that the template or `check` refuses (FILE:LINE), which skip_bad_lines leaves out instead, or if nothing is left.
PromptSet load_prompts(const config::DataOptions& options, text::TextWorker& text, const CheckLines& check = {});

// Loads the prompts of all files of options.prompt_data, one after another. If there are several, `sources` says which
// prompt is from which file.
PromptSet load_all_prompts(const config::DataOptions& options, text::TextWorker& text, const CheckLines& check = {});

}  // namespace tandem::session
