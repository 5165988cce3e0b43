// Where prompts come from and how they become tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "rl/prompts.h"

namespace tandem::config {

struct DataOptions {
  std::vector<std::string> prompt_data;     // --prompt-data: one file or more, each PATH or PATH@[a:b]
  std::vector<double> prompt_data_weights;  // of each file of prompt_data; empty: the files follow each other
  rl::PromptOptions lines;         // which file, and what of its lines; label_needed_by and rewards have no flag
  std::string system_prompt = "";  // of conversations that have no system message; empty: none
  std::optional<bool> apply_chat_template;  // unset: message lists yes, strings verbatim
  std::string apply_chat_template_kwargs = "{}";
  bool add_special_tokens = true;           // before plain texts: those of the tokenizer's post-processor, such as BOS
  bool allow_unrendered_reasoning = false;  // of `tandem sft`: trained reasoning_content may be absent from the text
  int64_t max_prompt_len = 0;               // 0: no limit
  const char* max_prompt_flag = "--rollout-max-prompt-len";  // where it came from, for errors

  // All but the files, whose flags are the verb's.
  void visit(base::Options& options);
  void visit_rendering(base::Options& options);  // of these, how a conversation becomes tokens, and which are left out
  void visit_template(base::Options& options);   // of these, how a conversation becomes tokens
  void visit_prompt_data(base::Options& options, const std::string& help);
  void visit_prompt_data_weights(base::Options& options);

  // UserError: as many weights as files are needed, and one file needs none.
  void check() const;
  // These options for one of the files of prompt_data.
  DataOptions for_file(const std::string& path) const;
};

}  // namespace tandem::config
